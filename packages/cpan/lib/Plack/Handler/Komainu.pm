package Plack::Handler::Komainu;

use strict;
use warnings;

our $VERSION = '0.1.0';

# Options of plackup, and the flags of `komainu run` that they become.
my %FLAGS = (
    workers => '--workers', timeout => '--timeout', max_requests => '--max-requests', max_memory => '--max-memory',
    body_max => '--body-max', log => '--log', log_level => '--log-level', control => '--control', user => '--user',
    tls_certificate => '--tls-certificate', tls_key => '--tls-key',
);

sub new {
    my ($class, %options) = @_;
    return bless {%options}, $class;
}

sub command {
    my ($self, @arguments) = @_;
    # plackup hands over what it has loaded; the server loads the file itself, in workers of its own.
    my ($file) = $ENV{KOMAINU_PSGI} // grep { /\.(?:psgi|pl)\z/ && -f } reverse @arguments;
    $file //= 'app.psgi';
    -f $file or die "Komainu needs the file of the application (FILE.psgi or FILE.pl): code of -e or -M has none\n";
    my @listen = grep { defined && length } @{ $self->{listen} // [] };
    @listen = ('127.0.0.1:' . ($self->{port} // 5000)) if !@listen;
    @listen = ("$self->{host}:" . ($self->{port} // 5000)) if defined $self->{host};
    my @flags = map { defined $self->{$_} ? ($FLAGS{$_}, $self->{$_}) : () } sort keys %FLAGS;
    return ($ENV{KOMAINU} // 'komainu', 'run', (map { ('--listen', $_ =~ m{^/} ? "unix:$_" : $_) } @listen), @flags, $file);
}

sub run {
    my ($self) = @_;
    my @command = $self->command(@ARGV);
    exec { $command[0] } @command or die "$command[0] cannot be started: $! (the server itself is no part of this module)\n";
}

1;

__END__

=head1 NAME

Plack::Handler::Komainu - plackup with the web server Komainu

=head1 SYNOPSIS

    plackup -s Komainu --workers 4 app.psgi

=head1 DESCRIPTION

Starts C<komainu run> in place of plackup. The server loads the file of the application itself, in worker processes of its
own, so code of C<-e> does not work. The program C<komainu> has to be in C<PATH>, or named in C<KOMAINU>; it is not part of this module.

Options: C<--host>, C<--port>, C<--listen>, C<--workers>, C<--timeout>, C<--max_requests>, C<--max_memory>, C<--body_max>, C<--log>,
C<--log_level>, C<--control>, C<--user>, C<--tls_certificate>, C<--tls_key>: as those of C<komainu run>.

=cut
