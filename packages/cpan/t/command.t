use strict;
use warnings;
use File::Temp;
use Test::More;

use Plack::Handler::Komainu;

delete $ENV{KOMAINU};
my $folder = File::Temp->newdir;
chdir $folder or die $!;
open my $file, '>', 'shop.psgi' or die $!;
close $file;

my @command = Plack::Handler::Komainu->new(port => 8000, host => '0.0.0.0', workers => 3)->command('-s', 'Komainu', 'shop.psgi');
is_deeply \@command, ['komainu', qw(run --listen 0.0.0.0:8000 --workers 3 shop.psgi)];
@command = Plack::Handler::Komainu->new(listen => ['/run/shop.sock'])->command('shop.psgi');
is_deeply \@command, ['komainu', qw(run --listen unix:/run/shop.sock shop.psgi)];
ok !eval { Plack::Handler::Komainu->new->command('-e', 'sub { }'); 1 };
like $@, qr/needs the file/;
chdir '/';
done_testing;
