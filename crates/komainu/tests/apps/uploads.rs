//! Requests without `Content-Length`, in every language and common frameworks.

use std::path::Path;
use std::process::Command;

use crate::hosted;
use crate::hosted::{Client, start};
use crate::rig;
use crate::rig::{Folder, Rig};

/// Far more than is read ahead into memory.
const VALUE_BYTES: usize = 200_000;

/// Posts a chunked form whose only parameter is `VALUE_BYTES` long.
fn post(rig: &Rig) -> (u16, String) {
    let mut client = Client::new(rig.address);
    client.send(
        "POST /form HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\n\
         Transfer-Encoding: chunked\r\n\r\n2\r\na=\r\n",
    );
    for _ in 0..VALUE_BYTES / 4000 {
        client.send(format!("fa0\r\n{}\r\n", "y".repeat(4000)));
    }
    client.send("0\r\n\r\n");
    client.answer()
}

/// Returns the application's response: length of the parameter or body, `CONTENT_LENGTH`, and transfer
/// coding.
fn reported_by(file: &str, text: &str, app: &str) -> String {
    let folder = Folder::new();
    folder.write(file, text);
    let rig = start(
        folder,
        &format!(
            r#"
            [[route]]
            app = "shop"
            [apps.shop]
            workers = 1
            {app}
            "#
        ),
    );
    let (status, body) = post(&rig);
    assert_eq!(status, 200, "{file}, {app}: {body}\n{}", rig.reported());
    body
}

fn has(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

#[test]
fn applications_receive_the_length_of_chunked_bodies() {
    let whole = format!("{} {} none", VALUE_BYTES, VALUE_BYTES + 2);
    let raw = format!("{0} {0} none", VALUE_BYTES + 2);
    let psgi = r"sub { my ($env) = @_; my ($sum, $piece) = (0); my $in = $env->{'psgi.input'};
$sum += length $piece while $in->read($piece, 8192);
[200, [], [join ' ', $sum, $env->{CONTENT_LENGTH} // 'none', $env->{HTTP_TRANSFER_ENCODING} // 'none']] }";
    assert_eq!(reported_by("app.psgi", psgi, "psgi = \"app.psgi\""), raw);
    let rack = "require 'rack'\nrun ->(env) { [200, {}, [[env['rack.input'].read.bytesize, env['CONTENT_LENGTH'] || 'none', \
                env['HTTP_TRANSFER_ENCODING'] || 'none'].join(' ')]] }";
    assert_eq!(reported_by("config.ru", rack, "rack = \"config.ru\""), raw);
    let params = "require 'rack'\nrun ->(env) { [200, {}, [[Rack::Request.new(env).params['a'].to_s.bytesize, env['CONTENT_LENGTH'] || 'none', \
                env['HTTP_TRANSFER_ENCODING'] || 'none'].join(' ')]] }";
    assert_eq!(reported_by("config.ru", params, "rack = \"config.ru\""), whole);
    let wsgi = "def app(environ, start):\n    start('200 OK', [])\n    size = len(environ['wsgi.input'].read())\n    \
                return [' '.join([str(size), environ.get('CONTENT_LENGTH', 'none'), environ.get('HTTP_TRANSFER_ENCODING', 'none')]).encode()]\n";
    for key in ["wsgi", "python"] {
        assert_eq!(reported_by("app.py", wsgi, &format!("{key} = \"app.py:app\"")), raw, "{key}");
    }
}

#[test]
fn frameworks_parse_form_parameters_of_chunked_bodies() {
    let whole = format!("{} {} none", VALUE_BYTES, VALUE_BYTES + 2);
    if has("perl", &["-MPlack::Request", "-e1"]) {
        let plack = r"use Plack::Request; sub { my $r = Plack::Request->new($_[0]);
[200, [], [join ' ', length($r->parameters->{a} // ''), $r->content_length // 'none', $r->header('Transfer-Encoding') // 'none']] }";
        assert_eq!(reported_by("app.psgi", plack, "psgi = \"app.psgi\""), whole);
    }
    if has("perl", &["-MMojolicious", "-e1"]) {
        let mojo = r"use Mojolicious::Lite -signatures;
post '/form' => sub ($c) { $c->render(text => join ' ', length($c->param('a') // ''), $c->req->headers->content_length // 'none', $c->req->headers->header('Transfer-Encoding') // 'none') };
app->start;
";
        assert_eq!(reported_by("app.psgi", mojo, "psgi = \"app.psgi\""), whole);
    }
    if has("ruby", &["-e", "require 'sinatra/base'"]) {
        let sinatra = "require 'sinatra/base'\nclass Shop < Sinatra::Base\n set :environment, :production\n \
            post('/form') { [params['a'].to_s.bytesize, request.content_length || 'none', env['HTTP_TRANSFER_ENCODING'] || 'none'].join(' ') }\nend\nrun Shop\n";
        assert_eq!(reported_by("config.ru", sinatra, "rack = \"config.ru\""), whole);
    }
    if has("ruby", &["-e", "require 'action_controller/railtie'"]) {
        let rails = include_str!("../ruby/form.ru");
        assert_eq!(reported_by("config.ru", rails, "rack = \"config.ru\""), whole);
    }
    if has("python3", &["-c", "import flask"]) {
        let flask = "from flask import Flask, request\napp = Flask(__name__)\n@app.post('/form')\ndef form():\n    \
            return ' '.join([str(len(request.form.get('a', ''))), str(request.content_length or 'none'), \
            request.headers.get('Transfer-Encoding', 'none')])\n";
        assert_eq!(reported_by("app.py", flask, "python = \"app.py:app\""), whole);
    }
}

#[test]
fn streamed_chunked_bodies_have_no_content_length() {
    let sum = (VALUE_BYTES + 2).to_string();
    let asgi = "async def app(scope, receive, send):\n    if scope['type'] != 'http':\n        raise RuntimeError('no')\n    size, more = 0, True\n    \
        while more:\n        message = await receive()\n        size, more = size + len(message.get('body', b'')), message.get('more_body', False)\n    \
        length = dict(scope['headers']).get(b'content-length', b'none').decode()\n    \
        await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n    \
        await send({'type': 'http.response.body', 'body': f'{size} {length}'.encode()})\n";
    assert_eq!(reported_by("app.py", asgi, "asgi = \"app.py:app\""), format!("{sum} none"));
    let buffered = reported_by("app.py", asgi, "asgi = \"app.py:app\"\nrequest_buffering = true");
    assert_eq!(buffered, format!("{sum} {sum}"));
    let wsgi = "def app(environ, start):\n    start('200 OK', [])\n    size = len(environ['wsgi.input'].read())\n    \
        return [f\"{size} {environ.get('CONTENT_LENGTH', 'none')} {environ.get('HTTP_TRANSFER_ENCODING', 'none')} {environ['wsgi.input_terminated']}\".encode()]\n";
    let reported = reported_by("app.py", wsgi, "wsgi = \"app.py:app\"\nrequest_buffering = false");
    assert_eq!(reported, format!("{sum} none none True"));
}

#[test]
fn start_fails_when_temp_path_does_not_exist() {
    let folder = Folder::new();
    folder.write("app.psgi", "sub { [200, [], ['x']] }");
    folder.write(
        "komainu.toml",
        r#"
        listen = "127.0.0.1:0"
        temp_path = "no/such"
        [[route]]
        app = "a"
        [apps.a]
        psgi = "app.psgi"
        "#,
    );
    let reported = hosted::server().arg("start").arg("-c").arg(folder.at("komainu.toml")).output().unwrap();
    let text = rig::text(&reported.stderr);
    assert!(
        !reported.status.success() && text.contains("no/such") && text.contains("temp_path = "),
        "{text}"
    );
    assert!(!Path::new("no/such").exists());
}
