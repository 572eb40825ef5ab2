//! Links between the files of the repository: the file exists, and has a heading for the anchor.

use super::pages::{Page, root};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Returns the anchors of a page's headings, as forges and mdBook generate them.
fn anchors(page: &Page) -> HashSet<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut found = HashSet::new();
    for line in page.prose() {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
        let slug: String = heading.trim().to_lowercase().chars().filter(|c| kept(*c)).collect();
        let slug = slug.replace(' ', "-");
        let times = seen.entry(slug.clone()).or_default();
        found.insert(if *times == 0 { slug } else { format!("{slug}-{times}") });
        *times += 1;
    }
    found
}

/// Returns the targets of the links in a line, without those in code.
fn targets(line: &str) -> Vec<String> {
    let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("code");
    let mut found: Vec<String> = prose
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.to_owned())
        .collect();
    // [name]: target
    if let Some((_, target)) = prose.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
        found.push(target.trim().to_owned());
    }
    found
}

/// Returns the broken links, one line each.
pub fn broken(pages: &[Page]) -> Vec<String> {
    let root = root().canonicalize().expect("the repository is there");
    let by_path: HashMap<&str, &Page> = pages.iter().map(|page| (page.path.as_str(), page)).collect();
    let mut broken = Vec::new();
    for page in pages {
        // The book's table of contents has paths from the root.
        let is_contents = page.path.ends_with("SUMMARY.md");
        let folder =
            if is_contents { Path::new("") } else { Path::new(&page.path).parent().expect("a file is in a folder") };
        for (number, line) in page.prose().iter().enumerate() {
            for target in targets(line) {
                if target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
                let full = if path.is_empty() { root.join(&page.path) } else { root.join(folder).join(path) };
                let location = format!("{}:{}", page.path, number + 1);
                let Ok(full) = full.canonicalize() else {
                    broken.push(format!("{location}: there is no {path}"));
                    continue;
                };
                let Ok(inside) = full.strip_prefix(&root) else {
                    broken.push(format!("{location}: {path} is outside of the repository"));
                    continue;
                };
                let to = by_path.get(inside.to_string_lossy().as_ref());
                if !anchor.is_empty() && !to.is_some_and(|to| anchors(to).contains(anchor)) {
                    broken.push(format!("{location}: {} has no heading #{anchor}", inside.display()));
                }
            }
        }
    }
    broken
}
