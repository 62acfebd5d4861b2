package Komainu;

# The Perl half of the Perl worker: code that does not run for every request.

use strict;
use warnings;

use Config ();
use DynaLoader ();
use IO::File ();
use PerlIO::scalar ();
use POSIX ();

# Roles, results of `order` and the exit status, as in komainu_life.h.
use constant { PROTOTYPE => 1, WORKER => 2, LEAVE => 0, SIGNAL => 2, NOT_LOADED => 3 };

# Signals that reach the whole process group but are meant for the server.
use constant SHARED => qw(TERM INT HUP QUIT USR1 USR2);
# KOMAINU_SIGNAL_WHERE, by which the server requests a stack before it kills this process, and the number of frames.
use constant { WHERE => 16, FRAMES_MAX => 100 };

# The process id of the process that keeps these handlers.
my $stays;

# Whether the server can receive descriptors from this process. The application may clear its environment.
my $sends_files = !$ENV{KOMAINU_NO_FILES};

# Bytes read from a handle at a time.
use constant PIECE_BYTES => 64 * 1024;

# Loads the native half, which is built separately for each perl.
sub load_native {
    my ($folder) = @_;
    my $perl = "$Config::Config{version}-$Config::Config{archname}";
    my $file = "$folder/$perl/Komainu.so";
    -e $file
        or die "There is no Komainu module for this perl ($^X, $perl).\n"
        . "Build it with: $folder/build $^X\n";
    my $library = DynaLoader::dl_load_file($file, 0) or die DynaLoader::dl_error(), "\n";
    my $boot = DynaLoader::dl_find_symbol($library, 'boot_Komainu') or die DynaLoader::dl_error(), "\n";
    DynaLoader::dl_install_xsub('Komainu::bootstrap', $boot, $file)->();
}

# Runs a process that the server has started, from its start to its end.
sub run {
    my ($folder, $file) = @_;
    load_native($folder);
    my $role = begin();
    _stay();
    my $name = $ENV{KOMAINU_APP};
    STDOUT->autoflush(1);
    STDERR->autoflush(1);
    my $app = eval { load_app($file) };
    if (!$app) {
        not_loaded(_shown($@));
        POSIX::_exit(NOT_LOADED);
    }
    if ($role == PROTOTYPE) {
        $0 = "komainu $name: prototype";
        loaded();
        fork_workers() or exit 0;
    }
    $0 = "komainu $name: worker";
    $stays = $$;
    srand;
    serve($app);
    exit 0;
}

# Installs perl's own handlers, which the end of an application's `local $SIG{TERM}` restores.
sub _stay {
    $stays = $$;
    my $restart = POSIX::SA_RESTART();
    for my $name (SHARED) {
        next if $SIG{$name} && $SIG{$name} ne 'DEFAULT';
        my $handler = POSIX::SigAction->new(\&_stays, POSIX::SigSet->new, $restart);
        $handler->safe(1);
        no strict 'refs';
        POSIX::sigaction("POSIX::SIG$name"->(), $handler);
    }
    # An unsafe (immediate) handler, because the process is about to be killed.
    POSIX::sigaction(WHERE, POSIX::SigAction->new(\&_write_stack));
}

# A process that the application has forked is ended by the signal as usual.
sub _stays {
    my ($name) = @_;
    return if $$ == $stays;
    $SIG{$name} = 'DEFAULT';
    kill $name, $$;
}

sub _write_stack {
    my $text = "process $$ is here:\n";
    for my $at (0 .. FRAMES_MAX - 1) {
        my (undef, $file, $line, $called) = caller $at or last;
        $text .= "  $file line $line" . ($at ? " called $called" : '') . "\n";
    }
    POSIX::write(2, $text, length $text);
    kill KILL => $$;
}

# Forks a worker whenever the server asks for one. Returns true in each worker, and false at the end.
sub fork_workers {
    while ((my $order = order()) != LEAVE) {
        next if $order == SIGNAL;
        my $between = fork;
        if (!defined $between) {
            not_forked("$!");
        } elsif ($between) {
            waitpid $between, 0;
        } else {
            # The intermediate process exits immediately, so that the worker becomes a child of the server.
            my $worker = fork;
            not_forked("$!") if !defined $worker;
            POSIX::_exit(0) if !defined $worker || $worker;
            born();
            return 1;
        }
    }
    return 0;
}

# Returns the value of the file's last statement, which must be code.
sub load_app {
    my ($file) = @_;
    $ENV{PLACK_ENV} ||= 'deployment';
    require File::Spec;
    my $path = File::Spec->rel2abs($file);
    -f $path or die "There is no file $file\n";
    # Applications written for plackup use this module without `use`.
    eval { require Plack::Util };
    local @ARGV;
    $0 = $path;
    my $app = _evaluate($path);
    return _as_code($app, $file);
}

# The text of an exception, without the calls of this folder that a stack trace of Carp ends with.
sub _shown {
    my ($text) = "$_[0]";
    my ($own) = __FILE__ =~ m{(.*/)};
    $text =~ s/^\t.* called at \Q$own\E[^\/\n]+ line \d+\.?\n//mg if defined $own;
    return $text;
}

sub _evaluate {
    my ($path) = @_;
    # A separate package, so that its names do not clash with this one's.
    my $app = eval "package Komainu::App; my \$app = do \$path; die \$\@ if \$\@; \$app";
    die $@ if $@;
    defined $app or die $! ? "$path: $!\n" : "$path does not return an application\n";
    return $app;
}

sub _as_code {
    my ($app, $file) = @_;
    if (ref $app eq 'CODE') {
        return $app;
    }
    require Scalar::Util;
    if (Scalar::Util::blessed($app)) {
        return $app->to_app if $app->can('to_app');
        require overload;
        return \&$app if overload::Method($app, '&{}') || Scalar::Util::reftype($app) eq 'CODE';
    }
    die "$file does not return an application: its last value is "
        . (ref $app ? 'a reference to ' . ref $app : "'$app'") . ", not code\n";
}

# ---- responses ----

# A delayed response: the application gets a function that takes it.
sub _delayed {
    my ($code) = @_;
    my $request = request();
    $code->(sub { must_be($request); _respond_later(@_) });
}

sub _respond_later {
    my ($answer) = @_;
    if (@$answer > 2 && defined $answer->[2]) {
        respond($answer);
        return;
    }
    head($answer->[0], $answer->[1]);
    Komainu::flush();
    return bless { request => request() }, 'Komainu::Writer';
}

# A body that is a handle, or has a method `getline`. It is closed even if the response cannot be sent.
sub _send_handle {
    my ($answer) = @_;
    my $is_sent = eval { _send_body(@$answer); 1 };
    my $error = $@;
    # The body is closed whatever happens; the client does not wait for that.
    Komainu::end() if $is_sent;
    my $body = $answer->[2];
    eval { $body->close if ref $body eq 'GLOB' || $body->can('close'); 1 } or print STDERR $@;
    die $error if !$is_sent;
}

sub _send_body {
    my ($status, $headers, $body) = @_;
    if (my ($descriptor, $offset, $length) = _file_of($body)) {
        head($status, $headers, $length);
        my $wanted = _content_length($headers);
        $length = $wanted if defined $wanted && $wanted < $length;
        send_file($descriptor, $offset, $length) if $length;
        return;
    }
    head($status, $headers);
    local $/ = \(PIECE_BYTES);
    while (defined(my $line = $body->getline)) {
        Komainu::write($line);
    }
}

sub _content_length {
    my ($headers) = @_;
    for (my $at = 0; $at < @$headers; $at += 2) {
        return $headers->[$at + 1] if lc $headers->[$at] eq 'content-length';
    }
    return;
}

# The part of a file that the server can send itself: descriptor, offset, length.
sub _file_of {
    my ($body) = @_;
    return if !$sends_files;
    require Scalar::Util;
    my $type = Scalar::Util::reftype($body) || '';
    return if $type ne 'GLOB' && $type ne 'IO';
    # A handle with a class of its own may read differently.
    return if Scalar::Util::blessed($body) && !$body->isa('IO::File') && !$body->isa('FileHandle');
    return if ref($body) =~ /^(?!IO::File$|FileHandle$|GLOB$)/ && $body->can('getline') != \&IO::Handle::getline;
    return file($body);
}

sub _clean_up {
    my ($env) = @_;
    my $handlers = $env->{'psgix.cleanup.handlers'};
    return if ref $handlers ne 'ARRAY';
    for my $handler (splice @$handlers) {
        eval { $handler->($env); 1 } or print STDERR $@;
    }
}

# ---- the body of a request, read while it arrives ----

sub _stream {
    my $handle = bless \do { local *BODY }, 'Komainu::Input';
    tie *$handle, 'Komainu::Input::Tied';
    return $handle;
}

package Komainu::Input;

# Methods defined here, so that those of IO::Handle, which check for a tied handle, are not used.

sub read { my $handle = shift; return tied(*$handle)->READ(@_) }
sub sysread { my $handle = shift; return tied(*$handle)->READ(@_) }
sub getline { return tied(*{ $_[0] })->line }
sub getlines { return tied(*{ $_[0] })->READLINE }
sub getc { return tied(*{ $_[0] })->GETC }
sub eof { return tied(*{ $_[0] })->EOF }
sub close { return 1 }
sub opened { return 1 }
sub fileno { return undef }
sub binmode { return 1 }
sub seek { return '' }
sub tell { return tied(*{ $_[0] })->TELL }

package Komainu::Input::Tied;

sub TIEHANDLE {
    my ($class) = @_;
    return bless { buffer => '', at => 0, ended => 0, request => Komainu::request() }, $class;
}

# Reads more; false at the end.
sub more {
    my ($self, $length) = @_;
    return 0 if $self->{ended};
    Komainu::must_be($self->{request});
    my $piece = Komainu::read($length < 65536 ? 65536 : $length);
    $self->{ended} = 1 if $piece eq '';
    $self->{buffer} .= $piece;
    return !$self->{ended};
}

sub take {
    my ($self, $length) = @_;
    $self->{at} += $length;
    return substr $self->{buffer}, 0, $length, '';
}

sub READ {
    my ($self, undef, $length, $offset) = @_;
    my $into = \$_[1];
    $offset ||= 0;
    $$into = '' if !defined $$into;
    # `read` returns as many bytes as requested unless the body ends earlier.
    while (length $self->{buffer} < $length) {
        $self->more($length - length $self->{buffer}) or last;
    }
    my $size = length $self->{buffer};
    my $piece = $self->take($size < $length ? $size : $length);
    my $old = length $$into;
    if ($offset < 0) {
        $offset += $old;
    } elsif ($offset > $old) {
        $$into .= "\0" x ($offset - $old);
    }
    substr($$into, $offset) = $piece;
    return length $piece;
}

sub line {
    my ($self) = @_;
    if (!defined $/) {
        1 while $self->more(65536);
        return length $self->{buffer} ? $self->take(length $self->{buffer}) : undef;
    }
    if (ref $/) {
        my $piece;
        return $self->READ($piece, ${$/}) ? $piece : undef;
    }
    my ($separator, $from) = (length $/ ? $/ : "\n\n", 0);
    while ((my $found = index $self->{buffer}, $separator, $from) < 0) {
        $from = length($self->{buffer}) - length($separator) + 1;
        $from = 0 if $from < 0;
        next if $self->more(65536);
        return length $self->{buffer} ? $self->take(length $self->{buffer}) : undef;
    } continue {
    }
    return $self->take(index($self->{buffer}, $separator) + length $separator);
}

sub READLINE {
    my ($self) = @_;
    return $self->line if !wantarray;
    my @lines;
    while (defined(my $line = $self->line)) {
        push @lines, $line;
    }
    return @lines;
}

sub GETC {
    my ($self) = @_;
    my $byte;
    return $self->READ($byte, 1) ? $byte : undef;
}

sub EOF {
    my ($self) = @_;
    return !length $self->{buffer} && !$self->more(1);
}

sub TELL { return $_[0]{at} }
sub SEEK { return '' }
sub CLOSE { return 1 }
sub BINMODE { return 1 }
sub FILENO { return undef }

package Komainu::Writer;

# The object to which an application writes a streaming body.

sub write {
    my ($self, $bytes) = @_;
    die "the body was closed\n" if $self->{closed};
    Komainu::must_be($self->{request});
    Komainu::write($bytes);
    return 1;
}

sub close {
    my ($self) = @_;
    $self->{closed} = 1;
    return 1;
}

1;
