package Shop;
use Dancer2;

set charset => 'UTF-8';
set session => 'Simple';
set show_stacktrace => 0;

get '/' => sub { return 'hello ' . query_parameters->get('name') };
get '/split/**' => sub { my ($parts) = splat; return to_json({ parts => $parts }) };
post '/form' => sub { return to_json({ said => body_parameters->get('said') }) };
put '/json' => sub {
    my $numbers = decode_json(request->body);
    return to_json({ sum => $numbers->{a} + $numbers->{b} });
};
post '/upload' => sub {
    my $file = upload('file');
    return to_json({ name => $file->filename, bytes => length $file->content });
};
get '/count' => sub {
    session(count => (session('count') // 0) + 1);
    return session('count');
};
get '/file' => sub { send_file(__FILE__, system_path => 1, content_type => 'text/plain') };
get '/stream' => sub {
    delayed {
        flush;
        content "piece $_\n" for 1 .. 3;
        done;
    };
};
get '/die' => sub { die "in Dancer\n" };

Shop->to_app;
