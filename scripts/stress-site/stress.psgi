# Answers /…?id=ID&size=N&chunks=N with ID repeated, and an upload with its length, if each of its lines is ID.
use strict;
use warnings;
use Time::HiRes 'sleep';

sub {
    my $env = shift;
    my %query = map { split /=/, $_, 2 } split /&/, $env->{QUERY_STRING};
    my ($id, $size, $chunks) = ($query{id}, $query{size} || 0, $query{chunks} || 1);
    my $fields = ['Content-Type' => 'text/plain', 'X-Id' => $id];
    if ($env->{REQUEST_METHOD} eq 'POST') {
        my ($content, $foreign) = ('', 0);
        while ($env->{'psgi.input'}->read(my $piece, 65536)) { $content .= $piece }
        $foreign = grep { $_ ne $id } split /\n/, $content;
        return [$foreign ? 409 : 200, $fields, [length $content]];
    }
    my $content = substr "$id\n" x ($size / length("$id\n") + 1), 0, $size;
    return [200, [@$fields, 'Content-Length' => $size], [$content]] if $chunks == 1;
    return sub {
        my $writer = shift->([200, $fields]);
        my $step = int($size / $chunks) + 1;
        for (my $at = 0; $at < $size; $at += $step) {
            $writer->write(substr $content, $at, $step);
            sleep 0.001;
        }
        $writer->close;
    };
};
