//! Which Ingresses are served: those of an IngressClass of this controller.

use std::collections::BTreeSet;

use crate::objects::{Ingress, ObjectKey, Objects};

/// The controller that IngressClasses name.
pub(crate) const INGRESS_CONTROLLER_NAME: &str = "komainu.dev/ingress-controller";
const DEFAULT_CLASS: &str = "ingressclass.kubernetes.io/is-default-class";
/// Names the class of an Ingress where `ingressClassName` does not.
const OLD_CLASS: &str = "kubernetes.io/ingress.class";

/// The classes that are served.
pub(crate) struct ServedClasses<'a> {
    objects: &'a Objects,
    ours: BTreeSet<&'a str>,
    /// The only class, if one is given.
    only: Option<&'a str>,
    /// Whether Ingresses without a class are served.
    has_default: bool,
}

impl<'a> ServedClasses<'a> {
    /// Finds the classes. `only` is the one to serve; it needs no object.
    pub(crate) fn new(objects: &'a Objects, only: Option<&'a str>) -> ServedClasses<'a> {
        let is_ours = |name: &str, controller: &str| {
            controller == INGRESS_CONTROLLER_NAME && only.is_none_or(|only| only == name)
        };
        let found =
            objects.ingress_classes.iter().filter(|(key, class)| is_ours(&key.name, &class.spec.controller));
        let has_default = found.clone().any(|(_, class)| {
            class.metadata.annotations.get(DEFAULT_CLASS).is_some_and(|text| text == "true")
        });
        let ours = found.map(|(key, _)| key.name.as_str()).collect();
        ServedClasses { objects, ours, only, has_default }
    }

    /// Whether an Ingress is served.
    pub(crate) fn serve(&self, ingress: &Ingress) -> bool {
        let old = ingress.metadata.annotations.get(OLD_CLASS).map(String::as_str);
        match ingress.spec.ingress_class_name.as_deref().or(old).filter(|name| !name.is_empty()) {
            Some(name) => self.has(name),
            None => self.has_default,
        }
    }

    fn has(&self, name: &str) -> bool {
        let is_declared = || self.objects.ingress_classes.contains_key(&ObjectKey::new("", name));
        self.ours.contains(name) || (self.only == Some(name) && !is_declared())
    }
}
