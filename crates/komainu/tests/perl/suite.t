# Plack::Test::Suite against the real binary: perl suite.t KOMAINU FOLDER-OF-suite.psgi
use strict;
use warnings;
use Test::More;
use Plack::Test::Suite;

# A request has one path, for routes and applications alike: repeated slashes are one (docs/guide.md, "Paths").
for my $test (@Plack::Test::Suite::TEST) {
    next unless $test->[0] eq 'repeated slashes';
    $test->[1] = sub {
        my $cb = shift;
        is $cb->(HTTP::Request->new(GET => 'http://127.0.0.1//foo///bar/baz'))->content, '/foo/bar/baz';
    };
}

my ($komainu, $folder) = splice @ARGV;
Plack::Test::Suite->run_server_tests(sub {
    my ($port) = @_;
    exec $komainu, 'run', '--listen', "127.0.0.1:$port", '--workers', 2, "$folder/suite.psgi" or die "$komainu: $!";
});
done_testing;
