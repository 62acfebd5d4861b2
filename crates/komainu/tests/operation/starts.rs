//! Failing starts, and their error messages.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::hosted::status;
use crate::rig::{Folder, Rig, as_we_are, is_root, komainu, text};

fn run(arguments: &[&str]) -> (bool, String, String) {
    let output = komainu().args(arguments).output().unwrap();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn start_fails_if_descriptor_limit_is_too_low() {
    let folder = Folder::new();
    folder.write("www/a", "A");
    let mut command = std::process::Command::new("prlimit");
    command.args(["--nofile=20:20", env!("CARGO_BIN_EXE_komainu"), "run", "--listen", "127.0.0.1:0"]);
    let done = command.arg(folder.at("www")).output().unwrap();
    let errors = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{errors}");
    assert!(["is 20", "ulimit -n", "LimitNOFILE"].iter().all(|part| errors.contains(part)), "{errors}");
}

#[test]
fn check_rejects_configurations_that_cannot_start() {
    let folder = Folder::new();
    folder.write("file", "").write("folder/file", "");
    let path = folder.at("k.toml");
    for (config, part) in [
        ("user = \"nobody-of-this-name\"\n", "no user nobody-of-this-name"),
        ("user = \"0\"\ngroup = \"none-of-this-name\"\n", "no group none-of-this-name"),
        ("[log]\nerrors = \"nowhere/errors.log\"\n", "nowhere/errors.log: there is no folder"),
        ("[log]\nerrors = \"file/errors.log\"\n", "is a file, not a folder"),
        (
            r#"
            [log]
            access = "combined"
            file = "folder"
            "#,
            "is a folder, not a file",
        ),
        ("listen = [\":8080\", \"127.0.0.1:8080\"]\n", "`127.0.0.1:8080` beside `:8080`"),
    ] {
        folder.write(
            "k.toml",
            format!(
                r#"
                {config}
                [[route]]
                respond = "a"
                "#
            ),
        );
        let (ok, out, errors) = run(&["check", "-c", path.to_str().unwrap()]);
        assert!(!ok && errors.contains(part), "{part}: {out}{errors}");
    }
}

#[test]
fn ipv6_wildcard_address_is_announced() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return eprintln!("SKIPPED: this system has no IPv6");
    }
    let folder = Folder::new();
    folder.write("www/a", "A");
    let mut command = komainu();
    command.args(["run", "--listen", "[::]:0"]).arg(folder.at("www"));
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let read =
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(read.is_ok() && line.contains("http://[::1]:") && line.contains("every IPv6 address"), "{line}");
}

#[test]
fn an_address_of_another_machine_is_refused_with_a_remedy() {
    let folder = Folder::new();
    folder.write("www/a", "A");
    // An address for documentation (RFC 5737), which no interface has.
    let (ok, _, errors) = run(&["run", "--listen", "192.0.2.1:8080", folder.at("www").to_str().unwrap()]);
    assert!(!ok && errors.contains("no interface") && errors.contains("\":8080\""), "{errors}");
}

#[test]
fn a_second_server_on_the_same_port_is_refused() {
    let rig = Rig::files(&[("a", "A")]);
    let www = rig.folder.at("www");
    let (ok, _, errors) = run(&["run", "--listen", &rig.address.to_string(), www.to_str().unwrap()]);
    assert!(!ok && errors.contains(&rig.address.to_string()) && errors.contains("in use"), "{errors}");
    assert!(errors.contains("komainu (process ") && errors.contains("listens there"), "{errors}");
}

#[test]
fn missing_files_are_reported_with_their_position() {
    let folder = Folder::new();
    folder.write("www/a", "A");
    let place = folder.path().display().to_string();
    for (config, said) in [
        (
            "[[route]]\nfiles = \"nofolder\"\n",
            format!("there is no folder {place}/nofolder\n --> k.toml:2:9\n"),
        ),
        (
            r#"
            error_pages = { 404 = "./x.html" }
            [[route]]
            files = "www"
            "#,
            format!("there is no file {place}/x.html\n --> k.toml:2:35\n"),
        ),
        (
            r#"
            [[site]]
            error_pages = { 404 = "x.html" }
            [[site.route]]
            files = "www"
            "#,
            format!("there is no file {place}/x.html\n --> k.toml:3:35\n"),
        ),
    ] {
        folder.write("k.toml", config);
        for command in ["check", "start"] {
            let output =
                komainu().args([command, "-c", "k.toml"]).current_dir(folder.path()).output().unwrap();
            let errors = text(&output.stderr);
            assert!(!output.status.success() && errors.contains(&said), "{errors}");
        }
    }
}

#[test]
fn missing_configuration_is_reported_with_remedy() {
    let folder = Folder::new();
    for command in ["check", "start"] {
        let output = komainu().arg(command).current_dir(folder.path()).output().unwrap();
        let errors = text(&output.stderr);
        assert!(!output.status.success(), "{errors}");
        let said = "error: cannot read komainu.toml: there is no such file\nhelp: name the configuration with `-c FILE`";
        assert!(errors.starts_with(said), "{errors}");
    }
    // Errors of all commands start the same way.
    for arguments in
        [&["fmt", "no.toml"][..], &["status", "--pid", "1"], &["sign-url", "--secret-file", "no", "/a"]]
    {
        let output = komainu().args(arguments).current_dir(folder.path()).output().unwrap();
        assert!(
            !output.status.success() && text(&output.stderr).starts_with("error: "),
            "{}",
            text(&output.stderr)
        );
    }
}

#[test]
fn commands_refuse_arguments_that_exclude_each_other() {
    let folder = Folder::new();
    folder.write("secret", "0123456789abcdef0123456789abcdef");
    for (line, part) in [
        ("sign-url --secret-file secret --for 1h --until 3 /a", "cannot be used with"),
        ("cache purge --all --tag a", "cannot be used with"),
        ("cache purge --all http://a.test/", "cannot be used with"),
        ("ctl cache purge --all --prefix http://a.test/", "cannot be used with"),
        (
            "sign-url --secret-file secret ftp://a.test/b",
            "`ftp` is not a scheme of a web server: write https://HOST/PATH",
        ),
    ] {
        let arguments = line.split(' ');
        let output = komainu().args(arguments).current_dir(folder.path()).output().unwrap();
        let errors = text(&output.stderr);
        assert!(
            !output.status.success() && errors.starts_with("error: ") && errors.contains(part),
            "{line}: {errors}"
        );
    }
    // The default of `--for` does not conflict with `--until`, and a path may contain a URL.
    for line in [
        "sign-url --secret-file secret --until 3 https://a.test/b",
        "sign-url --secret-file secret /fetch?url=ftp://a.test/b",
    ] {
        let output = komainu().args(line.split(' ')).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        // A URL within the query is not parsed.
        let path = line.rsplit(' ').next().unwrap();
        let signed = text(&output.stdout);
        assert!(signed.starts_with(path), "{signed}");
    }
}

#[test]
fn check_reports_unusable_certificates_and_programs() {
    let folder = Folder::new();
    folder.write("hook", "no program");
    let script = "exec 2>&1
        ec='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
        openssl req -x509 $ec -days 2 -subj /CN=authority -keyout ca.key -out ca.pem
        openssl req -x509 $ec -days 2 -subj /CN=other -keyout other.key -out other.pem
        openssl req $ec -subj /CN=a.test -keyout a.key -out a.csr
        printf 'subjectAltName=DNS:a.test\nauthorityInfoAccess=caIssuers;URI:http://ca.test/ca.der\n' > a.ext
        openssl x509 -req -in a.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile a.ext -out leaf.pem
        cat leaf.pem ca.pem > whole.pem; cat leaf.pem other.pem > foreign.pem";
    let made = Command::new("sh").args(["-ec", script]).current_dir(folder.path()).output().unwrap();
    assert!(made.status.success(), "{}", text(&made.stdout));
    folder.write("public/index.html", "");
    let site = |file: &str| {
        format!(
            r#"
            listen = [{{ address = "127.0.0.1:0", tls = true }}]
            [[site]]
            hosts = "a.test"
            tls = {{ certificate = "{file}", key = "a.key" }}
            [[site.route]]
            files = "public"
            "#
        )
    };
    let plain = |rest: &str| format!("listen = \"127.0.0.1:0\"\n{rest}");
    let proxy =
        |tls: &str| plain(&format!("[[route]]\nproxy = {{ to = \"https://a.test\", tls = {{ {tls} }} }}\n"));
    let acme = |directive: &str| {
        plain(&format!(
            r#"
            [acme]
            {directive}
            [[route]]
            files = "public"
            "#
        ))
    };
    for (config, words) in [
        (site("whole.pem"), ""),
        (
            site("leaf.pem"),
            "leaf.pem: the certificate of CN=a.test is issued by CN=authority, whose certificate the file lacks: ",
        ),
        (site("foreign.pem"), "the other certificates in the file are not its: use the file with the whole"),
        (
            proxy("certificate = \"leaf.pem\", key = \"other.key\""),
            "other.key: the private key does not belong",
        ),
        (proxy("ca = \"a.key\""), "a.key: there is a private key in it"),
        (acme("ca = \"nope.pem\""), "nope.pem"),
        (acme("ca = \"a.key\""), "a.key: there is a private key in it"),
        (acme("dns_hook = [\"./nope\"]"), "nope is not a program: "),
        (acme("dns_hook = [\"./hook\"]"), "make it executable (`chmod +x`)"),
    ] {
        folder.write("komainu.toml", format!("{}{config}", as_we_are()));
        let checked = komainu().arg("check").arg("-c").arg(folder.at("komainu.toml")).output().unwrap();
        let said = text(&checked.stderr);
        assert!(said.contains(words) && said.is_empty() == words.is_empty(), "{words}: {said}");
        assert_eq!(checked.status.success(), !said.starts_with("error: "), "{said}");
    }
}

#[test]
fn oversized_and_endless_configurations_are_rejected() {
    let folder = Folder::new();
    let path = folder.at("k.toml");
    folder.write("spaces", " ".repeat((8 << 20) + 1));
    folder.write(
        "k.toml",
        r#"
        include = "spaces"
        [[route]]
        respond = "a"
        "#,
    );
    let (ok, _, errors) = run(&["check", "-c", path.to_str().unwrap()]);
    assert!(!ok && errors.contains("spaces: a configuration has at most 8 MiB"), "{errors}");
    let (ok, _, errors) = run(&["check", "-c", "/dev/zero"]);
    assert!(!ok && errors.contains("/dev/zero:1: a NUL byte"), "{errors}");
    folder.write(
        "k.toml",
        r#"
        include = "/dev/zero"
        [[route]]
        respond = "a"
        "#,
    );
    let (ok, _, errors) = run(&["check", "-c", path.to_str().unwrap()]);
    assert!(!ok && errors.contains("/dev/zero:1: a NUL byte"), "{errors}");
}

#[test]
fn configuration_with_only_streams_is_valid() {
    let folder = Folder::new();
    let path = folder.at("k.toml");
    folder.write(
        "k.toml",
        r#"
        [[stream]]
        listen = "127.0.0.1:9000"
        to = "127.0.0.1:9001"
        "#,
    );
    let (ok, out, errors) = run(&["check", "-c", path.to_str().unwrap()]);
    assert!(ok && out.contains("0 sites, 0 routes, 1 stream\n"), "{out}{errors}");
    assert!(!errors.contains("answered 404"), "{errors}");
}

/// The variables with which a supervisor starts its server, and a server its successor.
#[test]
fn variables_of_a_supervisor_are_refused_from_others() {
    let folder = Folder::new();
    let user = if is_root() { "user = \"65534\"\ngroup = \"65534\"\n" } else { "" };
    folder.write("k.toml", format!("listen = \"127.0.0.1:0\"\n{user}[[route]]\nrespond = \"yes\"\n"));
    let path = folder.at("k.toml");
    for name in ["KOMAINU_SUPERVISOR", "KOMAINU_PREDECESSOR"] {
        let refused = format!("{name} is set, and no server started this process");
        // Without a socket, for another process than the parent, and for the parent.
        for value in ["0".to_owned(), "1".to_owned(), std::process::id().to_string()] {
            let mut command = komainu();
            command.arg("start").arg("-c").arg(&path).env(name, value).stdin(Stdio::null());
            let output = command.env("KOMAINU_IDENTITY", "0 0 0 root").output().unwrap();
            let said = text(&output.stderr);
            assert!(output.status.code() == Some(1) && said.contains(&refused), "{said}");
        }
        // A socket that another process than the parent has made: this one, and not the shell.
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{name}=$$ \"$0\" start -c \"$1\"; exit $?")]);
        command.arg(env!("CARGO_BIN_EXE_komainu")).arg(&path).env("KOMAINU_IDENTITY", "65534 65534 65534 x");
        let output = command.stdin(OwnedFd::from(theirs)).output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(&refused), "{said}");
    }
    // The user comes from the configuration.
    let mut command = komainu();
    command.arg("start").arg("-c").arg(&path).env("KOMAINU_IDENTITY", "0 0 0 root");
    let rig = Rig::start(command, folder);
    rig.get("/").expect(200, "yes");
    let server = status(&rig)["pid"].as_u64().unwrap();
    let shown = std::fs::read_to_string(format!("/proc/{server}/status")).unwrap();
    let user = if is_root() { 65_534 } else { nix::unistd::getuid().as_raw() };
    assert!(shown.contains(&format!("Uid:\t{user}\t{user}\t{user}\t{user}\n")), "{shown}");
}
