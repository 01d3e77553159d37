//! Tests `web_fetch` and `web_search` against real servers on loopback, and against addresses that
//! must not be reached.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post};
use serde_json::{Value, json};

use crate::support::{Place, Served, serve_on_loopback};

const PAGE: &str =
    "<!doctype html><title>t</title><h1>All is <i>well</i></h1><script>evil()</script><p>a &amp; b";

/// Starts a server with hostile pages; also returns the counter of its requests.
fn hostile_server() -> (Served, Arc<AtomicUsize>) {
    let hits = Arc::new(AtomicUsize::new(0));
    let counted = hits.clone();
    let to = |place: &'static str| {
        any(move || async move { (StatusCode::FOUND, [(header::LOCATION, place)]) })
    };
    let html = |text: String| any(move || async move { axum::response::Html(text.clone()) });
    let drip = || {
        futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), ()))
        })
    };
    let endless = || {
        futures_util::stream::unfold((), |()| async {
            Some((Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 65536])), ()))
        })
    };
    let bomb = {
        use std::io::Write as _;
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(&vec![b'x'; 100 << 20]).unwrap();
        packer.finish().unwrap()
    };
    let router = Router::new()
        .route("/page", html(PAGE.to_owned()))
        .route("/deep", html("<div>".repeat(800_000)))
        .route("/tangled", html("<div><b>".repeat(300_000)))
        .route(
            "/latin",
            any(|| async { ([(header::CONTENT_TYPE, "text/plain; charset=latin1")], vec![0xe9]) }),
        )
        .route("/json", any(|| async { axum::Json(json!({"a": [1, 2]})) }))
        .route(
            "/png",
            any(|| async { ([(header::CONTENT_TYPE, "application/zip")], vec![0u8; 10]) }),
        )
        .route(
            "/gone",
            any(|| async { (StatusCode::NOT_FOUND, axum::response::Html("<p>no such page")) }),
        )
        .route("/broken", any(|| async { (StatusCode::BAD_GATEWAY, "upstream") }))
        .route("/drip", get(move || async move { Body::from_stream(drip()) }))
        .route("/endless", get(move || async move { Body::from_stream(endless()) }))
        .route(
            "/bomb",
            get(move || async move {
                (
                    [(header::CONTENT_ENCODING, "gzip"), (header::CONTENT_TYPE, "text/plain")],
                    bomb.clone(),
                )
            }),
        )
        .route(
            "/headers",
            get(|| async {
                Response::builder().header("x", "y".repeat(2 << 20)).body(Body::empty()).unwrap()
            }),
        )
        .route("/elsewhere", to("/page"))
        .route(
            "/long",
            any(|| async {
                let place = format!("http://{}/", "a".repeat(100_000));
                (StatusCode::FOUND, [(header::LOCATION, place)])
            }),
        )
        .route(
            "/picture",
            any(|| async {
                let mut png = std::io::Cursor::new(Vec::new());
                let picture = image::RgbImage::new(4, 3);
                picture.write_to(&mut png, image::ImageFormat::Png).unwrap();
                ([(header::CONTENT_TYPE, "image/png")], png.into_inner())
            }),
        )
        .route("/round", to("/round"))
        .route("/metadata", to("http://169.254.169.254/latest/meta-data/"))
        .route("/file", to("file:///etc/shadow"))
        .route("/login", to("http://root:x@127.0.0.1/"))
        .route(
            "/cookie",
            any(|| async {
                (
                    StatusCode::FOUND,
                    [(header::SET_COOKIE, "id=1; Path=/"), (header::LOCATION, "/echo")],
                )
            }),
        )
        .route("/echo", any(|headers: HeaderMap| async move { format!("{headers:?}") }))
        .layer(axum::middleware::from_fn(move |request, next: axum::middleware::Next| {
            counted.fetch_add(1, Ordering::Relaxed);
            next.run(request)
        }));
    (serve_on_loopback(router), hits)
}

fn place(security: &str) -> Place {
    Place::new(&[
        (
            "config.yaml",
            &format!(
                "models: {{main: {{provider: scripted, script: script.yaml}}}}\nsecurity: {{{security}}}\n"
            ),
        ),
        ("tools.yaml", "version: 1\ntools: []\n"),
        ("script.yaml", "steps:\n  - say: done\n  - say: done\n"),
        (
            "jobs.yaml",
            "version: 1\njobs:\n  - {name: j, prompt: Work}\n  - {name: offline, prompt: Work, network: false}\n",
        ),
    ])
}

const OPEN: &str = "allowed_domains: [{host: 127.0.0.1, internal: true}]";

fn fetch(place: &Place, url: &str, more: Value) -> Value {
    let mut arguments = json!({"url": url});
    arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    place.json(&["call", "web_fetch", "--json", &arguments.to_string()])
}

// conforms 001-T11a, 001-T11b
#[test]
fn a_page_is_fetched_in_the_form_that_is_asked_for() {
    let (server, _) = hostile_server();
    let place = place(OPEN);
    let get = |path: &str, more: Value| {
        let fetched = fetch(&place, &format!("http://{}{path}", server.address), more);
        format!(
            "{} {}",
            fetched["error_kind"].as_str().unwrap_or("-"),
            fetched["output"].as_str().unwrap()
        )
    };
    assert_eq!(get("/page", json!({})), "- # All is *well*\n\na & b");
    assert_eq!(get("/page", json!({"format": "text"})), "- All is well\na & b");
    assert_eq!(get("/page", json!({"format": "html"})), format!("- {PAGE}"));
    assert_eq!(get("/latin", json!({})), "- é");
    assert_eq!(get("/json", json!({})), "- {\"a\":[1,2]}");
    let elsewhere = get("/elsewhere", json!({}));
    assert!(
        elsewhere.starts_with("- [the page is at http://127.0.0.1:")
            && elsewhere.contains("All is"),
        "{elsewhere}"
    );
    assert_eq!(get("/picture", json!({})), "- [image/png, 4 x 3 pixels]");
    assert_eq!(get("/gone", json!({})), "not_found [HTTP 404 Not Found]\nno such page");
    assert_eq!(get("/broken", json!({})), "tool [HTTP 502 Bad Gateway]\nupstream");
    assert_eq!(
        get("/png", json!({})),
        "tool [ERROR: This is not text but application/zip, 10 bytes.]"
    );
    let url = format!("http://{}/picture", server.address);
    let steps = format!(
        "steps: [{{call: {{tool: web_fetch, args: {{url: \"{url}\"}}}}}}, {{say: done}}, {{say: done}}]\n"
    );
    place.write("script.yaml", &steps);
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let shown = place.json(&["show", "last"]);
    let mut events = shown["events"].as_array().unwrap().iter();
    let end = events.find(|event| event["type"] == "tool_call_end").unwrap();
    let picture = &end["images"][0];
    assert_eq!(
        (&picture["media_type"], &picture["width"], &picture["height"]),
        (&json!("image/png"), &json!(4), &json!(3)),
        "{end}"
    );
}

// proves NET-1, NET-2, NET-3, NET-7
#[test]
fn a_page_does_not_lead_where_the_run_may_not_go() {
    let (server, hits) = hostile_server();
    let open = place(OPEN);
    for (path, why) in [
        ("/metadata", "`169.254.169.254` is not among"),
        ("/file", "only http:// and https://"),
        ("/login", "user name or a password"),
        ("/long", "is not among"),
    ] {
        let refused = fetch(&open, &format!("http://{}{path}", server.address), json!({}));
        assert_eq!(refused["error_kind"], "denied", "{refused}");
        let said = refused["output"].as_str().unwrap();
        assert!(said.contains(why) && said.len() < 600, "{said}");
    }
    let round = fetch(&open, &format!("http://{}/round", server.address), json!({}));
    assert_eq!(round["error_kind"], "limit", "{round}");
    assert_eq!(hits.swap(0, Ordering::Relaxed), 4 + 6);
    // Denied are, in turn: a listed name and a listed address that are internal, a name that is not
    // listed, an address under an empty list, and a listed address in its IPv6 form.
    let port = server.address.port();
    for (security, url) in [
        ("allowed_domains: [localhost]", format!("http://localhost:{port}/page")),
        ("allowed_domains: [127.0.0.1]", format!("http://127.0.0.1:{port}/page")),
        (OPEN, format!("http://localhost:{port}/page")),
        ("allowed_domains: []", format!("http://127.0.0.1:{port}/page")),
        (OPEN, format!("http://[::ffff:127.0.0.1]:{port}/page")),
    ] {
        let refused = fetch(&place(security), &url, json!({}));
        assert_eq!(refused["error_kind"], "denied", "{url}: {refused}");
    }
    assert_eq!(hits.load(Ordering::Relaxed), 0, "no address may be connected to");
    let open = place("allowed_domains: [{host: localhost, internal: true}]");
    let fetched = fetch(&open, &format!("http://localhost:{port}/page"), json!({}));
    assert_eq!(fetched["is_error"], false, "{fetched}");
    let explained = open.json(&[
        "explain",
        "offline",
        "web_fetch",
        &format!("{{\"url\": \"http://localhost:{port}/\"}}"),
    ]);
    assert_eq!((&explained["decision"], &explained["rule"]), (&json!("deny"), &json!("domain")));
}

/// Returns how many converters work in a temporary directory of `place`. Other tests have their own.
fn converters(place: &Place) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let works_here = |process: &std::path::PathBuf| {
        let of_text = std::fs::read(process.join("cmdline")).unwrap_or_default();
        let directory = std::fs::read_link(process.join("cwd")).unwrap_or_default();
        String::from_utf8_lossy(&of_text).contains("__convert")
            && directory.starts_with(place.state())
    };
    processes.filter(works_here).count()
}

// proves NET-5
// conforms 001-T11a
#[test]
fn large_and_slow_answers_end() {
    let (server, _) = hostile_server();
    let place = place(OPEN);
    for (path, kind) in [
        ("/endless", "limit"),
        ("/bomb", "limit"),
        ("/headers", "io"),
        ("/deep", "tool"),
        ("/tangled", "tool"),
        ("/drip", "timeout"),
    ] {
        let started = Instant::now();
        let url = format!("http://{}{path}", server.address);
        let seconds = if path == "/drip" { 1 } else { 60 };
        let ended = fetch(&place, &url, json!({"timeout": seconds}));
        assert_eq!(ended["error_kind"], kind, "{path}: {ended}");
        assert!(started.elapsed() < Duration::from_secs(30), "{path}");
    }
    assert_eq!(converters(&place), 0);
    // A page that cannot be converted is still available as HTML.
    let url = |path: &str| format!("http://{}{path}", server.address);
    assert_eq!(fetch(&place, &url("/deep"), json!({"format": "html"}))["is_error"], false);
    let large = fetch(&place, &url("/endless"), json!({}));
    assert!(large["output"].as_str().unwrap().contains("larger than 5242880 bytes"), "{large}");
    let long = fetch(&place, &url("/page"), json!({"timeout": 121}));
    assert_eq!(long["error_kind"], "invalid_arguments", "{long}");
    let slow = fetch(&place, &url("/drip"), json!({}));
    assert!(slow["output"].as_str().unwrap().contains("within 30 s"), "{slow}");
}

// conforms 001-O3
#[test]
fn the_operator_limits_the_size_of_a_response() {
    let (server, _) = hostile_server();
    let place = place(OPEN);
    let config = std::fs::read_to_string(place.config().join("config.yaml")).unwrap();
    let limits = "builtin_tools: {web_fetch: {max_bytes: 1KiB}}\n";
    place.write("config.yaml", &(config + limits));
    let url = |path: &str| format!("http://{}{path}", server.address);
    let small = fetch(&place, &url("/page"), json!({}));
    assert_eq!(small["is_error"], false, "{small}");
    let large = fetch(&place, &url("/deep"), json!({"format": "html"}));
    assert_eq!(large["error_kind"], "limit", "{large}");
    assert!(large["output"].as_str().unwrap().contains("larger than 1024 bytes"), "{large}");
    let config = std::fs::read_to_string(place.config().join("config.yaml")).unwrap();
    place.write("config.yaml", &config.replace("max_bytes: 1KiB", "timeout: 1s"));
    let slow = fetch(&place, &url("/drip"), json!({}));
    assert_eq!(slow["error_kind"], "timeout", "{slow}");
    assert!(slow["output"].as_str().unwrap().contains("within 1 s"), "{slow}");
}

// proves NET-6
#[test]
fn nothing_goes_along_with_a_request() {
    let (server, _) = hostile_server();
    let place = place(OPEN)
        .with_env("http_proxy", "http://127.0.0.1:1")
        .with_env("ALL_PROXY", "http://127.0.0.1:1");
    let echoed = fetch(&place, &format!("http://{}/cookie", server.address), json!({}));
    let headers = echoed["output"].as_str().unwrap();
    assert!(headers.contains("user-agent") && headers.contains("dutyd/"), "{headers}");
    for word in ["cookie\"", "authorization", "referer"] {
        assert!(!headers.contains(word), "{headers}");
    }
}

// conforms 001-D6
#[test]
fn a_job_opens_hosts_of_its_own_and_the_record_says_what_came() {
    let (server, _) = hostile_server();
    let place = place("");
    let url = format!("http://{}/page", server.address);
    let call = format!("{{tool: web_fetch, args: {{url: \"{url}\"}}}}");
    place.write(
        "script.yaml",
        &format!("steps:\n  - call: [{call}, {call}]\n  - say: done\n  - say: done\n"),
    );
    place.write(
        "jobs.yaml",
        "version: 1\njobs:\n  - name: j\n    prompt: Work\n    allowed_domains: [{host: 127.0.0.1, internal: true}]\n    limits: {rate: {per_minute: 1, burst: 1}}\n",
    );
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{done:?}");
    let shown = place.json(&["show", "last"]);
    let of = |kind: &str| -> Vec<Value> {
        let events = shown["events"].as_array().unwrap().iter();
        events.filter(|event| event["type"] == kind).cloned().collect()
    };
    let rules: Vec<Value> =
        of("policy_decision").iter().map(|event| event["rule"].clone()).collect();
    assert_eq!(rules, [json!("allowed"), json!("rate")]);
    let ends = of("tool_call_end");
    let end = ends.iter().find(|end| end["is_error"] == false).unwrap();
    assert_eq!(end["http_status"], 200, "{end}");
    assert_eq!(end["content_type"], "text/html; charset=utf-8");
    assert_eq!(end["fetched_bytes"], PAGE.len());
    assert_eq!(end["url"], url);
}

// conforms 001-T10a, 001-O2, 001-D5
#[test]
fn a_search_asks_the_service_that_there_is_a_key_for() {
    let answer = |headers: HeaderMap, body: axum::Json<Value>| async move {
        if headers.get("x-api-key").is_none_or(|key| key != "exa-secret-key") {
            return (StatusCode::UNAUTHORIZED, "who are you").into_response();
        }
        if body["query"] == "nothing" {
            return axum::Json(json!({"results": []})).into_response();
        }
        if body["query"] == "fail" {
            // The tool cuts this text to 200 characters, in the middle of the key.
            let said = format!("{} exa-secret-key", "x".repeat(192));
            return (StatusCode::TOO_MANY_REQUESTS, said).into_response();
        }
        axum::Json(json!({"requestId": "1", "results": [
            {"title": "One", "url": "https://one.example/", "publishedDate": "2026-01-02", "author": null, "text": body.to_string(), "id": "1"},
            {"title": null, "url": "https://two.example/", "score": 0.5},
        ]}))
        .into_response()
    };
    let server = serve_on_loopback(Router::new().route("/search", post(answer)));
    let place = place("");
    assert_eq!(place.dutyd(&["call", "web_search", "query=x"]).code, 3, "no key is configured");
    let config = |key: &str| {
        format!("web_search: {{api_key: {key}, base_url: \"http://{}\"}}\n", server.address)
    };
    place.write("config.yaml", &config("exa-secret-key"));
    let search = |query: &str| {
        place.json(&["call", "web_search", &format!("query={query}"), "num_results=2"])
    };
    let found = search("rust");
    let text = found["output"].as_str().unwrap();
    assert!(text.starts_with("1. One\n   https://one.example/\n   2026-01-02\n\n{"), "{text}");
    assert!(text.contains("2. (no title)\n   https://two.example/"), "{text}");
    for part in [
        "\"numResults\":2",
        "\"type\":\"auto\"",
        "\"maxCharacters\":5000",
        "\"livecrawl\":\"fallback\"",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let found_by_default = place.json(&["call", "web_search", "query=rust"]);
    let text = found_by_default["output"].as_str().unwrap();
    for part in ["\"numResults\":8", "\"maxCharacters\":1250"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let asked = json!({"query": "rust", "num_results": 4, "type": "deep", "livecrawl": "preferred", "context_max_characters": 40_000});
    let found_as_asked = place.json(&["call", "web_search", "--json", &asked.to_string()]);
    let text = found_as_asked["output"].as_str().unwrap();
    for part in [
        "\"query\":\"rust\"",
        "\"numResults\":4",
        "\"type\":\"deep\"",
        "\"livecrawl\":\"preferred\"",
        "\"maxCharacters\":10000",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for (key, expected) in [
        ("query", json!("rust")),
        ("num_results", json!(2)),
        ("search_type", json!("auto")),
        ("livecrawl", json!("fallback")),
    ] {
        assert_eq!(found[key], expected, "{key}");
    }
    assert_eq!(search("nothing")["output"], "[nothing was found]");
    let failed = search("fail");
    assert_eq!(failed["error_kind"], "tool");
    let said = failed["output"].as_str().unwrap();
    assert!(said.contains("429") && !said.contains("exa-"), "{said}");
    place.write("config.yaml", &config("other-secret-key"));
    assert_eq!(search("rust")["error_kind"], "tool");
    place.write("config.yaml", "web_search: {api_key: k, base_url: \"ftp://x\"}\n");
    assert_eq!(place.dutyd(&["validate"]).code, 2);
}

// proves ARG-12
#[test]
fn paths_and_addresses_for_programs_are_judged_as_for_our_own_tools() {
    let (server, _) = hostile_server();
    let port = server.address.port();
    let place = place(OPEN);
    place.write(
        "tools.yaml",
        "version: 1
tools:
  - {name: show, description: Shows a file, category: read, cmd: cat, args: [--, '{{file}}'], parameters: {file: {type: string, format: path}}}
  - {name: all, description: Shows files, category: read, cmd: cat, args: [--, '{{files}}'], parameters: {files: {type: array, items: {type: string, format: path}}}}
  - {name: get, description: Gets a page, category: read, cmd: echo, args: ['{{url}}'], parameters: {url: {type: string, format: url}}}
",
    );
    let work = place.state().join("workspace/call");
    std::fs::create_dir_all(&work).unwrap();
    std::fs::write(work.join("a"), "inside").unwrap();
    std::os::unix::fs::symlink("/etc/hostname", work.join("link")).unwrap();
    std::os::unix::fs::symlink("/nowhere/at/all", work.join("astray")).unwrap();
    let call = |tool: &str, arguments: Value| {
        let done = place.json(&["call", tool, "--json", &arguments.to_string()]);
        format!(
            "{} {}",
            done["error_kind"].as_str().unwrap_or("-"),
            done["output"].as_str().unwrap_or_default()
        )
    };
    assert_eq!(call("show", json!({"file": "a"})), "- inside");
    assert_eq!(call("all", json!({"files": ["a", "./a"]})), "- insideinside");
    for file in
        ["/etc/hostname", "../a", "~/x", "link", "astray", "/etc/passwd", "/proc/self/environ"]
    {
        let refused = call("show", json!({"file": file}));
        assert!(refused.starts_with("denied "), "{file}: {refused}");
    }
    assert!(call("all", json!({"files": ["a", "/etc/hostname"]})).starts_with("denied "));
    let url = format!("http://127.0.0.1:{port}/");
    assert_eq!(call("get", json!({"url": url})), format!("- {url}\n"));
    for url in
        ["http://169.254.169.254/", "file:///etc/shadow", "http://u:p@127.0.0.1/", "127.0.0.1"]
    {
        let refused = call("get", json!({"url": url}));
        assert!(refused.starts_with("denied "), "{url}: {refused}");
    }
    for url in
        ["http://2130706433/", "http:\\\\127.0.0.1\\", "http://127.1/x", "http://127.0.0.1/a b"]
    {
        let refused = call("get", json!({"url": url}));
        assert!(refused.starts_with("invalid_arguments "), "{url}: {refused}");
    }
    let explained = place.json(&["explain", "j", "show", "{\"file\": \"/etc/hostname\"}"]);
    assert_eq!(explained["rule"], "path");
    for (parameters, args) in [
        ("{f: {type: string, anyOf: [{format: path}]}}", "[--, '{{f}}']"),
        ("{f: {type: array, items: {type: string}, format: path}}", "[--, '{{f}}']"),
        ("{f: {type: integer, format: path}}", "[--, '{{f}}']"),
        ("{f: {type: string, format: path}}", "['/etc/{{f}}']"),
        ("{f: {type: string, format: url}, g: {type: string}}", "['{{f}}{{g}}']"),
    ] {
        place.write(
            "tools.yaml",
            &format!("version: 1\ntools:\n  - {{name: x, description: d, category: read, cmd: cat, args: {args}, parameters: {parameters}}}\n"),
        );
        assert_eq!(place.dutyd(&["validate"]).code, 2, "{parameters} {args}");
    }
}

// proves ARG-12
#[test]
fn files_that_a_program_is_given_to_write_are_counted() {
    let place = place("");
    place.write(
        "tools.yaml",
        "version: 1\ntools:\n  - {name: make, description: Makes a file, category: write, cmd: touch, args: [--, '{{file}}'], parameters: {file: {type: string, format: path}}}\n",
    );
    place.write(
        "script.yaml",
        "steps:\n  - call: {tool: make, args: {file: a}}\n  - call: {tool: make, args: {file: b}}\n  - say: done\n  - say: done\n",
    );
    place.write(
        "jobs.yaml",
        "version: 1\njobs:\n  - {name: j, prompt: Work, tools: {write: [make]}, limits: {max_files_modified: 1}}\n",
    );
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let work = place.state().join("workspace/j");
    assert!(work.join("a").exists() && !work.join("b").exists());
}
