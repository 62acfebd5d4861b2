# The endpoints of HttpArena as a PSGI application.
use strict;
use warnings;

my $json = do {
    my $class = eval { require Cpanel::JSON::XS; 'Cpanel::JSON::XS' } || do { require JSON::PP; 'JSON::PP' };
    $class->new->utf8;
};
my $items = do {
    open my $file, '<', $ENV{ARENA_DATASET} or die "ARENA_DATASET: $ENV{ARENA_DATASET}: $!\n";
    local $/;
    $json->decode(scalar <$file>);
};
my $h2c_port = $ENV{ARENA_H2C_PORT} // '';

sub parameter {
    my ($query, $name, $otherwise) = @_;
    return $query =~ /(?:\A|&)\Q$name\E=(-?[0-9]+)/ ? $1 + 0 : $otherwise;
}

sub baseline {
    my ($env) = @_;
    my $query = $env->{QUERY_STRING};
    my $total = parameter($query, 'a', 0) + parameter($query, 'b', 0);
    if ($env->{REQUEST_METHOD} eq 'POST') {
        $env->{'psgi.input'}->read(my $body, 64);
        $total += $1 if ($body // '') =~ /\A(-?[0-9]+)/;
    }
    return $total;
}

sub items {
    my ($wanted, $factor) = @_;
    my $last = $wanted < @$items ? $wanted - 1 : $#$items;
    my @rows = map { { %$_, total => $_->{price} * $_->{quantity} * $factor } } @$items[0 .. $last];
    return $json->encode({ items => \@rows, count => scalar @rows });
}

sub upload {
    my ($input) = @_;
    my $size = 0;
    while (my $got = $input->read(my $piece, 65536)) { $size += $got }
    return $size;
}

sub {
    my ($env) = @_;
    my ($path, $status, $kind, $body) = ($env->{PATH_INFO}, 200, 'text/plain');
    if ($env->{SERVER_PORT} eq $h2c_port && $env->{SERVER_PROTOCOL} =~ m{\AHTTP/1}) {
        ($status, $body) = (505, "HTTP/2 only\n");
    }
    elsif ($path eq '/baseline11' || $path eq '/baseline2') { $body = baseline($env) }
    elsif ($path =~ m{\A/json/([0-9]+)}) {
        ($kind, $body) = ('application/json', items($1, parameter($env->{QUERY_STRING}, 'm', 1)));
    }
    elsif ($path eq '/upload') { $body = upload($env->{'psgi.input'}) }
    else { ($status, $body) = (404, "not found\n") }
    return [$status, ['Content-Type' => $kind, 'Content-Length' => length $body], [$body]];
};
