//! Which requests are limitable and by which fields: Python's constants, as the scan needs them.

/// One way to say what a request is charged to: numbers of fields in `Table::fields`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub kind: String,
    pub name: u8,
    pub group: Option<u8>,
    pub batch: Option<u8>,
    pub sys_flag: Option<u8>,
}

/// More distinct field names than this are refused.
pub const MAX_FIELDS: usize = 16;
const NO_FIELD: u8 = u8::MAX;

/// The limitable requests, shared by all scanners.
#[derive(Debug)]
pub struct Table {
    codes: Vec<(i32, u8)>,
    entries: Vec<Entry>,
    fields: Vec<Box<[u8]>>,
    /// Bits of the fields whose values decide whether a header is plain.
    telling: u32,
    /// Bits of those that say what the message is.
    sys_flags: u32,
    /// The field with a name of one letter, which most are.
    of_one_byte: [u8; 256],
    pub max_header_bytes: usize,
    pub max_name_bytes: usize,
    pub retry_prefix: String,
    pub retry_kind: String,
    /// What a plain message is.
    pub plain_sys_flags: Vec<String>,
    /// Sends to these, or to what begins so, are not plain.
    pub internal_topics: Vec<String>,
    pub internal_prefix: String,
    /// Other requests that Python reads.
    pub read_by_python: Vec<i32>,
    /// Requests that the broker may leave without an answer for long.
    pub long_polls: Vec<i32>,
}

impl Table {
    pub fn new(max_header_bytes: usize, max_name_bytes: usize, retry_prefix: String, retry_kind: String) -> Self {
        Self {
            codes: Vec::new(),
            entries: Vec::new(),
            fields: Vec::new(),
            telling: 0,
            sys_flags: 0,
            of_one_byte: [NO_FIELD; 256],
            max_header_bytes,
            max_name_bytes,
            retry_prefix,
            retry_kind,
            plain_sys_flags: Vec::new(),
            internal_topics: Vec::new(),
            internal_prefix: String::new(),
            read_by_python: Vec::new(),
            long_polls: Vec::new(),
        }
    }

    /// Whether nothing limits requests of `code`, and nobody has to read them.
    pub fn passes(&self, code: i32) -> bool {
        self.entry_of(code).is_none() && !self.read_by_python.contains(&code)
    }

    /// Make requests of `code` limitable; None if there are too many entries or fields.
    pub fn add(
        &mut self,
        code: i32,
        kind: &str,
        name: &str,
        group: Option<&str>,
        batch: Option<&str>,
        sys_flag: Option<&str>,
    ) -> Option<()> {
        let name = self.number(name)?;
        let group = group.map_or(Some(None), |field| self.number(field).map(Some))?;
        let batch = batch.map_or(Some(None), |field| self.number(field).map(Some))?;
        let sys_flag = sys_flag.map_or(Some(None), |field| self.number(field).map(Some))?;
        self.sys_flags |= sys_flag.map_or(0, |field| 1 << field);
        self.telling |= batch.map_or(0, |field| 1 << field) | self.sys_flags;
        let entry = Entry { kind: kind.to_owned(), name, group, batch, sys_flag };
        let index = self.entries.len();
        self.entries.push(entry);
        self.codes.push((code, u8::try_from(index).ok()?));
        Some(())
    }

    fn number(&mut self, name: &str) -> Option<u8> {
        if let Some(known) = self.field(name.as_bytes()) {
            return u8::try_from(known).ok();
        }
        if self.fields.len() == MAX_FIELDS {
            return None;
        }
        let number = u8::try_from(self.fields.len()).ok()?;
        if let [byte] = name.as_bytes() {
            self.of_one_byte[usize::from(*byte)] = number;
        }
        self.fields.push(name.as_bytes().into());
        Some(number)
    }

    /// The number of the field with this name, if any entry has one.
    #[inline]
    pub fn field(&self, name: &[u8]) -> Option<usize> {
        if let [byte] = name {
            let number = self.of_one_byte[usize::from(*byte)];
            return (number != NO_FIELD).then_some(usize::from(number));
        }
        self.fields.iter().position(|field| **field == *name)
    }

    /// Whether the value of this field decides if a header is plain: it says if the body is a batch, or what the message is.
    pub fn tells(&self, field: usize) -> bool {
        self.telling >> field & 1 != 0
    }

    /// Whether the value of this field says what the message is; it may be a number.
    pub fn is_sys_flag(&self, field: usize) -> bool {
        self.sys_flags >> field & 1 != 0
    }

    #[inline]
    pub fn entry_of(&self, code: i32) -> Option<(u8, &Entry)> {
        let (_, entry) = self.codes.iter().find(|(known, _)| *known == code)?;
        Some((*entry, self.entries.get(usize::from(*entry))?))
    }

    fn is_internal(&self, name: &str) -> bool {
        !self.internal_prefix.is_empty() && name.starts_with(&self.internal_prefix)
            || self.internal_topics.iter().any(|topic| topic == name)
    }

    /// Kind and bare name of what a request by this entry is charged to; None where that is not beyond doubt.
    pub fn resource<'a>(&'a self, entry: u8, name: &'a str) -> Option<(&'a str, &'a str)> {
        let kind = &self.entries.get(usize::from(entry))?.kind;
        // A replacement character may stand for bytes that are no UTF-8.
        if name.is_empty() || name.len() > self.max_name_bytes || name.contains('\u{fffd}') {
            return None;
        }
        if self.is_internal(name) {
            return None;
        }
        match name.strip_prefix(&self.retry_prefix) {
            Some("") => None,
            Some(group) if *kind != self.retry_kind => Some((&self.retry_kind, group)),
            _ => Some((kind, name)),
        }
    }
}

/// The values of the fields that the table names, while a header is read; each at most once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Values([Option<crate::plain::Span>; MAX_FIELDS]);

impl Values {
    /// Note a field; None if it was there already.
    #[inline]
    pub fn note(&mut self, field: usize, value: crate::plain::Span) -> Option<()> {
        let place = self.0.get_mut(field)?;
        if place.is_some() {
            return None;
        }
        *place = Some(value);
        Some(())
    }

    #[inline]
    fn get(&self, field: u8) -> Option<crate::plain::Span> {
        self.0.get(usize::from(field)).copied().flatten()
    }

    /// The spans of name and producer group, if this is a send or send-back of one message.
    #[inline]
    pub fn charge(
        &self,
        header: &[u8],
        table: &Table,
        entry: &Entry,
    ) -> Option<(crate::plain::Span, crate::plain::Span)> {
        let name = self.get(entry.name)?;
        let group = entry.group.and_then(|field| self.get(field)).unwrap_or_default();
        if name.is_empty() || name.len() > table.max_name_bytes || group.len() > table.max_name_bytes {
            return None;
        }
        if let Some(sys_flag) = entry.sys_flag.and_then(|field| self.get(field)).map(|span| span.of(header)) {
            if !table.plain_sys_flags.iter().any(|plain| plain.as_bytes() == sys_flag) {
                return None;
            }
        }
        match entry.batch.and_then(|field| self.get(field)).map(|span| span.of(header)) {
            None | Some(b"false" | b"0") => Some((name, group)),
            Some(_) => None,
        }
    }
}
