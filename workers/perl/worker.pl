# Started by the server: perl worker.pl APPLICATION.psgi
use strict;
use warnings;
use File::Basename ();

my $folder = File::Basename::dirname(__FILE__);
require "$folder/Komainu.pm";
Komainu::run($folder, @ARGV);
