//! XML as a small tree, bounded in size and depth.

use quick_xml::Reader;
use quick_xml::events::Event;

/// The driver nests seven deep.
const DEPTH_MAX: usize = 32;
/// Eight GPUs make about 3,000 elements without their clock tables.
const ELEMENTS_MAX: usize = 200_000;
/// Tables of thousands of clock rates that nothing here reads.
const SKIPPED: &str = "supported_clocks";

#[derive(Debug, Default, Clone)]
pub struct Element {
    pub name: String,
    /// The `id` attribute, the only one the driver writes.
    pub id: Option<String>,
    pub text: String,
    pub children: Vec<Element>,
}

impl Element {
    pub fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.name == name)
    }

    pub fn at(&self, path: &str) -> Option<&Element> {
        path.split('/').try_fold(self, |element, name| element.child(name))
    }

    /// The text of the first of these paths that is there.
    pub fn text_at(&self, paths: &[&str]) -> Option<&str> {
        paths.iter().find_map(|path| self.at(path)).map(|element| element.text.as_str())
    }

    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.children.iter().filter(move |child| child.name == name)
    }

    /// Whether any text in the tree makes `test` true.
    pub fn any_text(&self, test: &dyn Fn(&str) -> bool) -> bool {
        test(&self.text) || self.children.iter().any(|child| child.any_text(test))
    }
}

/// A tree, and why it ends early if it does: then its elements are those that were closed before the fault.
pub struct Parsed {
    pub root: Element,
    pub fault: Option<String>,
}

fn id_of(start: &quick_xml::events::BytesStart<'_>) -> Option<String> {
    let attribute = start.try_get_attribute("id").ok()??;
    let value: &str = attribute.value.as_ref();
    Some(value.to_owned())
}

/// Parses a document. Elements still open at a fault are dropped with what is in them, except the outermost.
pub fn parse(document: &str) -> Parsed {
    let mut reader = Reader::from_str(document);
    let mut open: Vec<Element> = vec![Element::default()];
    let mut elements = 0;
    let fault = loop {
        match reader.read_event() {
            Ok(Event::Eof) if open.len() == 1 => break None,
            Ok(Event::Eof) => break Some("the document ends early".to_owned()),
            Ok(Event::Start(start)) => {
                let name = start.name().as_ref().to_owned();
                if name == SKIPPED {
                    match reader.read_to_end(start.name()) {
                        Ok(_) => continue,
                        Err(error) => break Some(error.to_string()),
                    }
                }
                elements += 1;
                if open.len() >= DEPTH_MAX || elements > ELEMENTS_MAX {
                    break Some("the document is larger than any driver writes".to_owned());
                }
                open.push(Element { name, id: id_of(&start), ..Element::default() });
            }
            Ok(Event::End(_)) => close(&mut open),
            Ok(Event::Empty(start)) => {
                elements += 1;
                if elements > ELEMENTS_MAX {
                    break Some("the document is larger than any driver writes".to_owned());
                }
                open.push(Element {
                    name: start.name().as_ref().to_owned(),
                    id: id_of(&start),
                    ..Element::default()
                });
                close(&mut open);
            }
            Ok(Event::Text(text)) => append(&mut open, &text.xml10_content()),
            Ok(Event::CData(text)) => append(&mut open, &text.xml10_content()),
            Ok(Event::GeneralRef(reference)) => append(&mut open, predefined(&reference.xml10_content())),
            Ok(Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_)) => {}
            Err(error) => break Some(error.to_string()),
        }
    };
    // Keep the log element itself when the document broke off inside it.
    if open.len() > 1 {
        open.truncate(2);
        close(&mut open);
    }
    let root = open.pop().unwrap_or_default();
    Parsed { root, fault }
}

fn close(open: &mut Vec<Element>) {
    if open.len() < 2 {
        return;
    }
    if let (Some(element), Some(parent)) = (open.pop(), open.last_mut()) {
        parent.children.push(element);
    }
}

fn append(open: &mut [Element], text: &str) {
    if let Some(element) = open.last_mut() {
        element.text.push_str(text);
    }
}

/// The five entities of XML itself. The driver's document declares no others, and none is ever fetched or expanded.
fn predefined(name: &str) -> &str {
    match name {
        "amp" => "&",
        "lt" => "<",
        "gt" => ">",
        "quot" => "\"",
        "apos" => "'",
        _ => "",
    }
}
