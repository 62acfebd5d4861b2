# The applications of Plack::Test::Suite, wrapped in Plack::Middleware::Lint, which checks PSGI environments and responses.
use strict;
use warnings;
use Plack::Test::Suite;
use Plack::Middleware::Lint;

Plack::Middleware::Lint->wrap(Plack::Test::Suite->test_app_handler);
