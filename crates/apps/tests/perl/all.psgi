# Test application with one path per feature.
use strict;
use warnings;

use Fcntl ();

my %paths = (
    '/' => sub { return [200, ['Content-Type' => 'text/plain'], ["hello from $$"]] },

    '/env' => sub {
        my ($env) = @_;
        my %shown = %$env;
        $shown{$_} = ref $shown{$_} || $shown{$_} for keys %shown;
        return [200, ['Content-Type' => 'text/plain'], [map { "$_=$shown{$_}\n" } sort keys %shown]];
    },

    # Corrupts global state that the next request must not see.
    '/spoil' => sub {
        my ($env) = @_;
        $env->{$_} = 'spoilt' for keys %$env;
        delete $env->{'psgi.errors'};
        $env->{'my.own'} = 'left behind';
        push @{ $env->{'psgix.cleanup.handlers'} = [] }, sub { };
        return [200, [], ['spoilt']];
    },

    '/pieces' => sub { return [200, ['X-Two' => 1, 'X-Two' => 2], ['a', undef, '', 'b', 'c' x 100_000]] },

    # Returns the entire body, using `read`.
    '/echo' => sub {
        my ($env) = @_;
        my $body = '';
        while ($env->{'psgi.input'}->read(my $piece, 10_000)) {
            $body .= $piece;
        }
        return [200, ['X-Buffered' => $env->{'psgix.input.buffered'}, 'X-Length' => $env->{CONTENT_LENGTH} // 'none',
            'X-Coding' => $env->{HTTP_TRANSFER_ENCODING} // 'none'], [$body]];
    },

    '/lines' => sub {
        my ($env) = @_;
        my $input = $env->{'psgi.input'};
        my $first = <$input>;
        my @rest = <$input>;
        return [200, [], [length $first, ' ', scalar @rest, ' ', eof $input ? 'end' : 'more']];
    },

    # Echoes the body piece by piece.
    '/stream' => sub {
        my ($env) = @_;
        return sub {
            my $writer = $_[0]->([200, ['Content-Type' => 'application/octet-stream']]);
            while ($env->{'psgi.input'}->read(my $piece, 65536)) {
                $writer->write($piece);
            }
            $writer->close;
        };
    },

    # A body that the application has chunked itself, as some frameworks do.
    '/chunks' => sub {
        my ($env) = @_;
        return [200, ['Transfer-Encoding' => 'chunked'], $env->{QUERY_STRING} ? ['no chunk'] : ["2\r\nab\r\n1;x=y\r\n", "c\r\n0\r\n\r\n"]];
    },

    '/delayed' => sub {
        return sub { $_[0]->([201, ['X-Late' => 'yes'], ['later']]) };
    },

    '/download' => sub {
        my ($env) = @_;
        return sub {
            my $writer = $_[0]->([200, []]);
            $writer->write('x' x 65536) for 1 .. $env->{QUERY_STRING} * 16;
            $writer->close;
        };
    },

    '/count' => sub {
        my ($env) = @_;
        my ($bytes, $piece) = (0);
        while (my $got = $env->{'psgi.input'}->read($piece, 65536)) {
            $bytes += $got;
        }
        return [200, [], ["$bytes bytes"]];
    },

    '/file' => sub {
        my ($env) = @_;
        open my $file, '<:raw', $env->{QUERY_STRING} or die $!;
        seek $file, 3, Fcntl::SEEK_SET if $env->{HTTP_X_SKIP};
        return [200, ['Content-Type' => 'text/plain'], $file];
    },

    '/object' => sub { return [200, [], Count->new] },

    '/hint' => sub {
        my ($env) = @_;
        $env->{'psgix.informational'}->(103, ['Link' => '</a.css>; rel=preload']);
        return [200, [], ['hinted']];
    },

    '/cleanup' => sub {
        my ($env) = @_;
        push @{ $env->{'psgix.cleanup.handlers'} }, sub { print STDERR "cleaned up after $_[0]{PATH_INFO}\n" };
        return [200, [], ['soon clean']];
    },

    '/harakiri' => sub {
        my ($env) = @_;
        $env->{'psgix.harakiri.commit'} = 1;
        return [200, [], ["last words of $$"]];
    },

    '/errors' => sub { $_[0]->{'psgi.errors'}->print("to the log\n"); print "to stdout\n"; return [200, [], ['logged']] },
    '/die' => sub { die "on purpose\n" },
    '/die-late' => sub {
        return sub { my $writer = $_[0]->([200, []]); $writer->write('begun'); die "in the middle\n" };
    },
    '/die-empty' => sub { return sub { $_[0]->([200, []]); die "before a byte\n" } },
    '/excess' => sub { return [200, ['Content-Length' => 5], ['hello', ' world']] },
    '/excess-stream' => sub {
        return sub {
            my $writer = $_[0]->([200, ['Content-Length' => 5]]);
            $writer->write($_) for 'hel', 'lo wo', 'rld', 'on and on';
            $writer->close;
        };
    },
    '/nothing' => sub { return },
    '/silent' => sub { return sub { } },
    '/wide' => sub { return [200, [], ["\x{263a}"]] },
    '/split' => sub { return [200, ["X-A" => "1\r\nX-B: 2"], ['split']] },
    '/empty' => sub { return [204, [], []] },
    '/exit' => sub { print STDERR "exits\n"; exit 0 },
    '/kill' => sub { print STDERR "is killed\n"; kill KILL => $$; sleep 1 },
    # Logs when it begins, at which point the worker has claimed the request.
    '/sleep' => sub {
        my ($env) = @_;
        $env->{'psgi.errors'}->print("sleeps $env->{QUERY_STRING}\n");
        select undef, undef, undef, $env->{QUERY_STRING};
        return [200, [], ["slept in $$"]];
    },
    '/eat' => sub { our $eaten = 'x' x (64 << 20); return [200, [], ['full']] },
);

my $app = sub {
    my ($env) = @_;
    my $path = $paths{ $env->{PATH_INFO} } or return [404, ['Content-Type' => 'text/plain'], ["no $env->{PATH_INFO}"]];
    return $path->($env);
};

package Count;

sub new { return bless { next => 1 }, shift }
sub getline { my ($self) = @_; return $self->{next} > 3 ? undef : $self->{next}++ . "\n" }
sub close { print STDERR "the body was closed\n" }

$app;
