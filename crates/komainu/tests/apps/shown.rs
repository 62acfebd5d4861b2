//! Applications in four languages that echo header fields of their requests.

use crate::rig::Folder;

/// Names of the applications; each is served on the route `/NAME`.
pub(crate) const LANGUAGES: [&str; 4] = ["psgi", "rack", "wsgi", "asgi"];

/// Writes the applications and returns their routes and tables. Each responds with the values of `fields`, in
/// lower case, separated by bars; `-` stands for a field that was not received.
pub(crate) fn applications(folder: &Folder, fields: &[&str]) -> String {
    let variables: Vec<String> =
        fields.iter().map(|name| format!("HTTP_{}", name.to_uppercase().replace('-', "_"))).collect();
    let words = variables.join(" ");
    let tuple = variables.join("', '");
    let bytes = fields.join("', b'");
    folder
        .write(
            "a.psgi",
            format!(
                "sub {{ my $e = shift; [200, ['Content-Type', 'text/plain'], [join '|', map {{ $e->{{$_}} // '-' }} qw({words})]] }}\n"
            ),
        )
        .write(
            "config.ru",
            format!(
                "run ->(env) {{ [200, {{ 'content-type' => 'text/plain' }}, [%w[{words}].map {{ |name| env[name] || '-' }}.join('|')]] }}\n"
            ),
        )
        .write(
            "w.py",
            format!(
                "def application(environ, start_response):\n    start_response('200 OK', [('Content-Type', 'text/plain')])\n    \
                 return ['|'.join(environ.get(name, '-') for name in ('{tuple}',)).encode()]\n"
            ),
        )
        .write(
            "s.py",
            format!(
                "async def app(scope, receive, send):\n    assert scope['type'] == 'http'\n    \
                 def all_of(name):\n        return b','.join(v for n, v in scope['headers'] if n.lower() == name) or b'-'\n    \
                 await send({{'type': 'http.response.start', 'status': 200, 'headers': [(b'content-type', b'text/plain')]}})\n    \
                 await send({{'type': 'http.response.body', 'body': b'|'.join(all_of(name) for name in (b'{bytes}',))}})\n"
            ),
        );
    let files = ["a.psgi", "config.ru", "w.py:application", "s.py:app"];
    let route = |(kind, file): (&str, &str)| {
        format!(
            r#"
            [[route]]
            path = "/{kind}"
            app = "{kind}"
            [apps.{kind}]
            {kind} = "{file}"
            workers = 1
            "#
        )
    };
    LANGUAGES.into_iter().zip(files).map(route).collect()
}
