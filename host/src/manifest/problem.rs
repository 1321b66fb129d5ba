//! What is wrong with a manifest, and where: findings by place, problems by line and column.
//!
//! A [`Finding`] names a place by its path in the manifest and knows no text; a [`Problem`] is the same, shown in the text. Rooms that
//! check a manifest return findings; [`super::Document`] turns them into problems.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};

use super::At;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The job runs, but probably not as meant.
    Warning,
    /// The job does not run.
    Error,
}

/// Something wrong at a place in the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Where it is.
    pub at: At,
    /// What is wrong.
    pub message: String,
    /// What was meant, or what to do.
    pub help: Option<String>,
}

impl Finding {
    /// An error.
    pub fn error(at: At, message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, at, message: message.into(), help: None }
    }

    /// A warning.
    pub fn warning(at: At, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, at, message: message.into(), help: None }
    }

    /// The same with what to do.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// A place in a text, both counted from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl Position {
    /// The position of the byte at `offset`, which must lie on a character boundary of `text`.
    fn of(text: &str, offset: usize) -> Self {
        let before = &text[..offset];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1 }
    }
}

/// Something wrong with a manifest, with the text that it lies in.
#[derive(Debug, Clone)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub message: String,
    /// What was meant, or what to do.
    pub help: Option<String>,
    /// The manifest's file, or the override at fault (`--set …`).
    pub file: String,
    place: Option<Place>,
}

#[derive(Debug, Clone)]
struct Place {
    source: NamedSource<Arc<str>>,
    span: Range<usize>,
}

impl Problem {
    /// A problem with a file as a whole.
    pub(super) fn of_file(file: &str, message: impl Into<String>, help: Option<String>) -> Self {
        Self { severity: Severity::Error, message: message.into(), help, file: file.to_owned(), place: None }
    }

    /// The same problem at `span` of `text`. A span that leaves the text or cuts a character is widened or cut to one that does not.
    pub(super) fn placed(mut self, text: &Arc<str>, span: Range<usize>) -> Self {
        let start = text.floor_char_boundary(span.start.min(text.len()));
        let end = text.ceil_char_boundary(span.end.clamp(start, text.len()));
        let source = NamedSource::new(&self.file, Arc::clone(text)).with_language("TOML");
        self.place = Some(Place { source, span: start..end });
        self
    }

    /// The bytes of the text that are at fault, if the problem lies in a text.
    pub fn span(&self) -> Option<Range<usize>> {
        self.place.as_ref().map(|place| place.span.clone())
    }

    /// The text that the problem lies in.
    pub fn text(&self) -> Option<&str> {
        self.place.as_ref().map(|place| &**place.source.inner())
    }

    /// The line and column where the fault begins.
    pub fn position(&self) -> Option<Position> {
        self.place.as_ref().map(|place| Position::of(place.source.inner(), place.span.start))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message.fmt(formatter)
    }
}

impl std::error::Error for Problem {}

impl Diagnostic for Problem {
    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.severity {
            Severity::Warning => miette::Severity::Warning,
            Severity::Error => miette::Severity::Error,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.place.as_ref().map(|place| &place.source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.span()?;
        Some(Box::new(std::iter::once(LabeledSpan::new_primary_with_span(None, span))))
    }
}

/// Why a manifest was refused: everything that was found wrong with it, warnings included, in the order of the text.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", self.summary())]
pub struct ManifestError {
    problems: Vec<Problem>,
}

impl ManifestError {
    pub(super) fn new(mut problems: Vec<Problem>) -> Self {
        sort(&mut problems);
        Self { problems }
    }

    /// What was found.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    fn summary(&self) -> String {
        let errors = self.problems.iter().filter(|problem| problem.severity == Severity::Error).count();
        let file = self.problems.first().map_or("the manifest", |problem| &problem.file);
        match errors {
            1 => format!("`{file}` is refused for 1 error"),
            _ => format!("`{file}` is refused for {errors} errors"),
        }
    }
}

impl Diagnostic for ManifestError {
    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        Some(Box::new(self.problems.iter().map(|problem| problem as &dyn Diagnostic)))
    }
}

/// Problems in the order of their places, those in overrides last.
pub(super) fn sort(problems: &mut [Problem]) {
    problems.sort_by_key(|problem| (problem.file.starts_with("--set "), problem.span().map_or(0, |span| span.start)));
}

/// The candidate that `written` is most likely a misspelling of, if any is near.
pub(crate) fn closest<'a>(written: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let normal = |name: &str| name.to_lowercase().replace('_', "-");
    let written = normal(written);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&written, &normal(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `, did you mean …?` for the nearest candidate, or nothing.
pub(crate) fn did_you_mean<'a>(written: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    closest(written, candidates).map(|name| format!(", did you mean `{name}`?")).unwrap_or_default()
}

/// Names in backquotes with commas between.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_name_is_near_or_none() {
        let check = |written, expected| {
            assert_eq!(closest(written, ["path", "format", "on-error", "key"]), expected, "{written}");
        };
        check("pth", Some("path"));
        check("formta", Some("format"));
        check("on_error", Some("on-error"));
        check("ON-EROR", Some("on-error"));
        check("kye", Some("key"));
        check("delivery", None);
        check("", None);
    }

    #[test]
    fn positions_count_lines_and_characters() {
        let check = |text: &str, offset, line, column| {
            assert_eq!(Position::of(text, offset), Position { line, column }, "{text:?} {offset}");
        };
        check("", 0, 1, 1);
        check("ab\ncd", 1, 1, 2);
        check("ab\ncd", 3, 2, 1);
        check("ab\ncd", 5, 2, 3);
        check("äö\nüx", 7, 2, 2);
    }

    #[test]
    fn a_span_outside_the_text_is_cut_to_it() {
        let check = |text: &str, span: Range<usize>, expected: Range<usize>| {
            let problem = Problem::of_file("f", "m", None).placed(&Arc::from(text), span);
            assert_eq!(problem.span(), Some(expected));
        };
        check("abc", 1..2, 1..2);
        check("abc", 7..9, 3..3);
        check("äb", 1..1, 0..2);
        #[expect(clippy::reversed_empty_ranges, reason = "the parser's spans come from outside")]
        check("abc", 2..1, 2..2);
    }
}
