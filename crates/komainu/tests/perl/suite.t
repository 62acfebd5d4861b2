# Runs Plack::Test::Suite with the real binary: perl suite.t KOMAINU FOLDER-OF-suite.psgi
use strict;
use warnings;
use Test::More;
use Plack::Test::Suite;

my ($komainu, $folder) = splice @ARGV;
Plack::Test::Suite->run_server_tests(sub {
    my ($port) = @_;
    exec $komainu, 'run', '--listen', "127.0.0.1:$port", '--workers', 2, "$folder/suite.psgi" or die "$komainu: $!";
});
done_testing;
