//! The table of directives: one row for each directive of nginx, in files by module of nginx.
//!
//! Rows of a part are translated in the order of the table, which is that of the keys in the result.

mod row;

mod core;

mod http;

mod tls;

mod places;

mod files;

mod headers;

mod access;

mod limits;

mod proxy;

mod cgi;

mod upstream;

mod stream;

mod third_party;

use super::translation::DirectiveRow;

const TABLES: [&[DirectiveRow]; 15] = [
    core::DIRECTIVES,
    http::DIRECTIVES,
    tls::DIRECTIVES,
    places::DIRECTIVES,
    files::DIRECTIVES,
    headers::DIRECTIVES,
    access::DIRECTIVES,
    limits::DIRECTIVES,
    proxy::DIRECTIVES,
    cgi::FASTCGI,
    cgi::UWSGI,
    cgi::SCGI,
    upstream::DIRECTIVES,
    stream::DIRECTIVES,
    third_party::DIRECTIVES,
];

const COUNT: usize = {
    let mut count = 0;
    let mut at = 0;
    while at < TABLES.len() {
        count += TABLES[at].len();
        at += 1;
    }
    count
};

/// All directives.
pub(crate) static DIRECTIVES: [DirectiveRow; COUNT] = {
    let mut all = [TABLES[0][0]; COUNT];
    let mut filled = 0;
    let mut table = 0;
    while table < TABLES.len() {
        let mut row = 0;
        while row < TABLES[table].len() {
            all[filled] = TABLES[table][row];
            filled += 1;
            row += 1;
        }
        table += 1;
    }
    all
};

#[cfg(test)]
mod tests;
