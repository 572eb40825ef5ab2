//! The page's static files. They contain no data of users.

use hyper::body::Bytes;

/// Returns the content type and the contents of a file.
pub fn file(path: &str) -> Option<(&'static str, Bytes)> {
    let (kind, text) = match path {
        "/" | "/index.html" => ("text/html; charset=utf-8", include_str!("../assets/index.html")),
        "/dashboard.js" => ("text/javascript; charset=utf-8", include_str!("../assets/dashboard.js")),
        "/charts.js" => ("text/javascript; charset=utf-8", include_str!("../assets/charts.js")),
        "/tables.js" => ("text/javascript; charset=utf-8", include_str!("../assets/tables.js")),
        "/dashboard.css" => ("text/css; charset=utf-8", include_str!("../assets/dashboard.css")),
        "/icon.svg" => ("image/svg+xml", include_str!("../assets/icon.svg")),
        _ => return None,
    };
    Some((kind, Bytes::from_static(text.as_bytes())))
}
