use utf8;
use Mojolicious::Lite -signatures;
use Mojo::Server::PSGI;

app->log->level('error');
app->secrets(['for a test']);
get '/' => sub ($c) { $c->render(json => { hello => $c->param('name') }) };
get '/page' => sub ($c) { $c->render(template => 'page', name => 'Jürgen <b>') };
post '/form' => sub ($c) { $c->render(text => $c->param('said')) };
post '/upload' => sub ($c) {
    my $file = $c->req->upload('file');
    $c->render(json => { name => $file->filename, bytes => $file->size });
};
get '/count' => sub ($c) {
    $c->session(count => ($c->session('count') // 0) + 1);
    $c->render(text => $c->session('count'));
};
get '/stream' => sub ($c) {
    my @pieces = map { "piece $_\n" } 1 .. 3;
    my $drain;
    $drain = sub ($c, @) { my $piece = shift @pieces // ''; $c->write_chunk($piece, length $piece ? $drain : ()) };
    $drain->($c);
};
get '/die' => sub ($c) { die "in Mojolicious\n" };
app->start('psgi');

__DATA__

@@ page.html.ep
<p><%= $name %></p>
