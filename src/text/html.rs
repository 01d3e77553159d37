//! Converts a web page to Markdown or to plain text.
//!
//! A hostile page can exhaust the stack of the process that converts it, so run these functions in
//! a process of their own.

use htmd::HtmlToMarkdown;
use htmd::options::{BulletListMarker, Options};
use markup5ever_rcdom::NodeData;

/// Elements whose content a reader does not see.
const UNREAD: &[&str] = &["head", "noscript", "script", "style", "svg", "template"];

/// Elements that begin and end a line.
const BLOCKS: &[&str] = &[
    "address",
    "article",
    "aside",
    "blockquote",
    "body",
    "br",
    "caption",
    "dd",
    "details",
    "div",
    "dl",
    "dt",
    "fieldset",
    "figcaption",
    "figure",
    "footer",
    "form",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "header",
    "hr",
    "li",
    "main",
    "nav",
    "ol",
    "option",
    "p",
    "pre",
    "section",
    "summary",
    "table",
    "textarea",
    "tr",
    "ul",
];

fn converter() -> HtmlToMarkdown {
    HtmlToMarkdown::builder()
        .options(Options {
            bullet_list_marker: BulletListMarker::Dash,
            ul_bullet_spacing: 1,
            ol_number_spacing: 1,
            ..Options::default()
        })
        .skip_tags(UNREAD.to_vec())
        .build()
}

/// Converts a page to Markdown.
///
/// *Errors*: the page cannot be converted.
pub fn markdown(page: &str) -> std::io::Result<String> {
    converter().convert(page)
}

/// Converts a page to plain text, with one line per block.
///
/// *Errors*: the page cannot be converted.
pub fn words(page: &str) -> std::io::Result<String> {
    let mut text = String::new();
    // Keep the root until the end: dropping a node drops everything below it.
    let root = converter().html_to_tree(page)?;
    // The nodes still to visit, the next one last, and whether their text is verbatim. `None` ends
    // a line.
    let mut open = vec![Some((root.clone(), false))];
    while let Some(next) = open.pop() {
        let Some((node, is_verbatim)) = next else {
            end_line(&mut text);
            continue;
        };
        let mut is_verbatim = is_verbatim;
        match &node.data {
            NodeData::Text { contents } if is_verbatim => text.push_str(&contents.borrow()),
            NodeData::Text { contents } => add_words(&mut text, &contents.borrow()),
            NodeData::Element { name, .. } => {
                let name: &str = &name.local;
                if UNREAD.contains(&name) {
                    continue;
                }
                is_verbatim |= name == "pre";
                if BLOCKS.contains(&name) {
                    end_line(&mut text);
                    open.push(None);
                } else if matches!(name, "td" | "th") && !text.ends_with('\n') {
                    text.push('\t');
                }
            }
            _ => {}
        }
        let children = node.children.borrow();
        open.extend(children.iter().rev().map(|child| Some((child.clone(), is_verbatim))));
    }
    Ok(text.trim().to_owned())
}

fn end_line(text: &mut String) {
    text.truncate(text.trim_end_matches([' ', '\t']).len());
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
}

/// Appends text and collapses white space as a browser does: to a single space, and to nothing at
/// the beginning of a line.
fn add_words(text: &mut String, more: &str) {
    let is_begun = |text: &str| !text.is_empty() && !text.ends_with([' ', '\n', '\t']);
    if more.starts_with(char::is_whitespace) && is_begun(text) {
        text.push(' ');
    }
    for (at, word) in more.split_whitespace().enumerate() {
        if at > 0 {
            text.push(' ');
        }
        text.push_str(word);
    }
    if more.ends_with(char::is_whitespace) && is_begun(text) {
        text.push(' ');
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: &str = "<!doctype html><title>T</title><style>p{}</style><h1>Status  page</h1><p>All <b>good</b>, *really*: <a href=/x>more</a>.
<ul><li>one<li>two</ul><script>evil()</script><table><tr><th>a<th>b<tr><td>1<td>2</table><pre><code>x
  y</code></pre><img src=i.png alt=I>";

    #[test]
    fn a_page_is_turned_into_markdown() {
        let text = markdown(PAGE).unwrap();
        for part in [
            "# Status page",
            "All **good**, \\*really\\*: [more](/x).",
            "- one\n- two",
            "| 1 | 2 |",
            "```\nx\n  y\n```",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("evil") && !text.contains("p{}"), "{text}");
    }

    #[test]
    fn a_page_is_turned_into_words() {
        let text = words(PAGE).unwrap();
        assert_eq!(text, "Status page\nAll good, *really*: more.\none\ntwo\na\tb\n1\t2\nx\n  y");
    }

    proptest! {
        #[test]
        fn no_page_ends_it(page in "(<(/?)(p|b|table|td|tr|a|ul|li|pre|svg|template|select|math)>|[a-z &;<\\n]){0,40}") {
            prop_assert!(markdown(&page).is_ok() && words(&page).is_ok());
        }
    }
}
