//! Compression effort.

/// The trade-off between CPU time and size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// The least CPU time.
    Fast,
    /// Most of the gain for little CPU time.
    #[default]
    Balanced,
    /// The smallest result.
    Small,
}

impl Effort {
    /// Selects one of three levels: fast, balanced, small.
    pub(crate) fn select<T: Copy>(self, levels: [T; 3]) -> T {
        match self {
            Effort::Fast => levels[0],
            Effort::Balanced => levels[1],
            Effort::Small => levels[2],
        }
    }
}
