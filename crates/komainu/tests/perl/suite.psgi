# The applications of Plack::Test::Suite, behind Plack's own check of what a server gives and gets.
use strict;
use warnings;
use Plack::Test::Suite;
use Plack::Middleware::Lint;

Plack::Middleware::Lint->wrap(Plack::Test::Suite->test_app_handler);
