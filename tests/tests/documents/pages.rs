//! The pages of the manual, and the fenced blocks in them.

use std::path::Path;
pub use tensorlend_tests::tree::root;
use tensorlend_tests::tree::texts;

/// A Markdown file.
pub struct Page {
    /// The page's path from the root, such as `docs/c.md`.
    pub path: String,
    pub text: String,
}

pub struct Block {
    pub page: String,
    /// The line of the block's opening fence, from 1.
    pub line: usize,
    /// The first word after the fence.
    pub language: String,
    /// The other words after the fence.
    pub attributes: Vec<String>,
    pub text: String,
}

impl Block {
    /// Returns the block's location in a compiler's format.
    pub fn location(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }

    /// Returns its first line, by which a decision identifies it.
    pub fn begins(&self) -> &str {
        self.text.lines().next().unwrap_or_default().trim_end()
    }

    /// Returns the path of the file that a reader creates from the block: `file=PATH`.
    pub fn file(&self) -> Option<&str> {
        self.attributes.iter().find_map(|word| word.strip_prefix("file="))
    }

    /// Returns the block's requirements besides tensorlend, `needs=WHAT`: programs, libraries that pkg-config knows,
    /// packages of Python. The block is skipped if one is missing.
    pub fn needs(&self) -> impl Iterator<Item = &str> {
        self.attributes.iter().filter_map(|word| word.strip_prefix("needs="))
    }
}

impl Page {
    /// Returns the page's lines, with the lines of fenced blocks replaced by empty ones.
    pub fn prose(&self) -> Vec<String> {
        let mut inside = false;
        let line = |line: &str| {
            let fence = line.trim_start().starts_with("```");
            inside ^= fence;
            if inside || fence { String::new() } else { line.to_owned() }
        };
        self.text.lines().map(line).collect()
    }

    /// Returns its fenced blocks.
    ///
    /// # Panics
    /// If one has no end, or no language.
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut open = None;
        for (number, line) in self.text.lines().enumerate() {
            match (&mut open, line.strip_prefix("```")) {
                (None, Some(mark)) => {
                    let mut words = mark.split([' ', ',']).filter(|word| !word.is_empty()).map(String::from);
                    let language = words.next();
                    let location = format!("{}:{}", self.path, number + 1);
                    let language = language.unwrap_or_else(|| panic!("{location}: say the language behind the fence"));
                    let (attributes, text) = (words.collect(), String::new());
                    open = Some(Block { page: self.path.clone(), line: number + 1, language, attributes, text });
                }
                (Some(_), Some("")) => blocks.extend(open.take()),
                (Some(block), _) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: the last block has no end", self.path);
        blocks
    }
}

/// Returns every Markdown file of the repository.
pub fn all() -> Vec<Page> {
    let path = |path: &Path| path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
    texts(root(), "md").into_iter().map(|(file, text)| Page { path: path(&file), text }).collect()
}

/// Returns the pages whose blocks are tested: the guides. Results and decisions are records, and the commands for
/// contributors build and test for hours.
pub fn manual() -> Vec<Page> {
    let is_manual = |page: &Page| match page.path.as_str() {
        "README.md" | "COMPARE.md" | "SECURITY.md" | "ARCHITECTURE.md" | "bindings/python/README.md" => true,
        "docs/internals/testing.md" => false,
        path if path.starts_with("docs/results/") || path.starts_with("docs/adr/") => false,
        path => path.starts_with("docs/") || path.starts_with("examples/"),
    };
    all().into_iter().filter(is_manual).collect()
}
