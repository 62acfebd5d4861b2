//! Status codes (RFC 9110 section 15).

/// A status code, 100 to 999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(u16);

macro_rules! statuses {
    ($($code:literal $name:ident $reason:literal;)*) => {
        #[allow(missing_docs)] // each is its RFC 9110 name
        impl Status {
            $(pub const $name: Status = Status($code);)*

            /// The reason phrase registered for this code; empty for an unregistered code.
            #[must_use]
            pub const fn reason(self) -> &'static str {
                match self.0 {
                    $($code => $reason,)*
                    _ => "",
                }
            }

            /// The whole HTTP/1.1 status line; `None` for an unregistered code.
            #[must_use]
            pub(crate) const fn line(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(concat!("HTTP/1.1 ", $code, " ", $reason, "\r\n")),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    100 CONTINUE "Continue";
    101 SWITCHING_PROTOCOLS "Switching Protocols";
    103 EARLY_HINTS "Early Hints";
    200 OK "OK";
    201 CREATED "Created";
    202 ACCEPTED "Accepted";
    203 NON_AUTHORITATIVE_INFORMATION "Non-Authoritative Information";
    204 NO_CONTENT "No Content";
    205 RESET_CONTENT "Reset Content";
    206 PARTIAL_CONTENT "Partial Content";
    207 MULTI_STATUS "Multi-Status";
    300 MULTIPLE_CHOICES "Multiple Choices";
    301 MOVED_PERMANENTLY "Moved Permanently";
    302 FOUND "Found";
    303 SEE_OTHER "See Other";
    304 NOT_MODIFIED "Not Modified";
    307 TEMPORARY_REDIRECT "Temporary Redirect";
    308 PERMANENT_REDIRECT "Permanent Redirect";
    400 BAD_REQUEST "Bad Request";
    401 UNAUTHORIZED "Unauthorized";
    402 PAYMENT_REQUIRED "Payment Required";
    403 FORBIDDEN "Forbidden";
    404 NOT_FOUND "Not Found";
    405 METHOD_NOT_ALLOWED "Method Not Allowed";
    406 NOT_ACCEPTABLE "Not Acceptable";
    407 PROXY_AUTHENTICATION_REQUIRED "Proxy Authentication Required";
    408 REQUEST_TIMEOUT "Request Timeout";
    409 CONFLICT "Conflict";
    410 GONE "Gone";
    411 LENGTH_REQUIRED "Length Required";
    412 PRECONDITION_FAILED "Precondition Failed";
    413 CONTENT_TOO_LARGE "Content Too Large";
    414 URI_TOO_LONG "URI Too Long";
    415 UNSUPPORTED_MEDIA_TYPE "Unsupported Media Type";
    416 RANGE_NOT_SATISFIABLE "Range Not Satisfiable";
    417 EXPECTATION_FAILED "Expectation Failed";
    421 MISDIRECTED_REQUEST "Misdirected Request";
    422 UNPROCESSABLE_CONTENT "Unprocessable Content";
    425 TOO_EARLY "Too Early";
    426 UPGRADE_REQUIRED "Upgrade Required";
    428 PRECONDITION_REQUIRED "Precondition Required";
    429 TOO_MANY_REQUESTS "Too Many Requests";
    431 FIELDS_TOO_LARGE "Request Header Fields Too Large";
    451 UNAVAILABLE_FOR_LEGAL_REASONS "Unavailable For Legal Reasons";
    500 INTERNAL_SERVER_ERROR "Internal Server Error";
    501 NOT_IMPLEMENTED "Not Implemented";
    502 BAD_GATEWAY "Bad Gateway";
    503 SERVICE_UNAVAILABLE "Service Unavailable";
    504 GATEWAY_TIMEOUT "Gateway Timeout";
    505 VERSION_NOT_SUPPORTED "HTTP Version Not Supported";
    507 INSUFFICIENT_STORAGE "Insufficient Storage";
    508 LOOP_DETECTED "Loop Detected";
    511 NETWORK_AUTHENTICATION_REQUIRED "Network Authentication Required";
}

impl Status {
    /// The status of this code, if it has three digits (100 to 999).
    #[must_use]
    pub const fn of(code: u16) -> Option<Status> {
        if code >= 100 && code <= 999 { Some(Status(code)) } else { None }
    }

    /// The code.
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0
    }

    /// The code's three ASCII digits.
    #[must_use]
    pub const fn digits(self) -> [u8; 3] {
        [b'0' + (self.0 / 100) as u8, b'0' + (self.0 / 10 % 10) as u8, b'0' + (self.0 % 10) as u8]
    }

    /// 1xx.
    #[must_use]
    pub const fn is_informational(self) -> bool {
        self.0 < 200
    }

    /// 2xx.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 >= 200 && self.0 < 300
    }

    /// 4xx or 5xx.
    #[must_use]
    pub const fn is_error(self) -> bool {
        self.0 >= 400 && self.0 < 600
    }

    /// Whether a response of this status never has content, even if its fields announce some (RFC 9110
    /// section 6.4.1).
    #[must_use]
    pub const fn forbids_content(self) -> bool {
        self.0 < 200 || self.0 == 204 || self.0 == 304
    }
}
