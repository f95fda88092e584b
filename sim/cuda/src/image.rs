//! What is in a device code image: the names of its kernels with their parameters, and its variables.
//!
//! PTX text, cubin (ELF) and fat binaries with or without their wrapper. Nothing is compiled. The
//! host hands over an address without a length; each format says its own. An entry that is packed in
//! a way that is not read here makes the image *opaque*: it then has every kernel that is asked for.

/// A kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its name.
    pub(crate) name: String,
    /// Offset and size of each parameter, in bytes.
    pub(crate) parameters: Vec<(u32, u32)>,
}

/// A variable in global memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Variable {
    /// Its name.
    pub(crate) name: String,
    /// Its size in bytes.
    pub(crate) bytes: u64,
}

/// What an image contains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Image {
    /// Its kernels, in order.
    pub(crate) entries: Vec<Entry>,
    /// Its variables, in order.
    pub(crate) variables: Vec<Variable>,
    /// Whether a part of it could not be read.
    pub(crate) is_opaque: bool,
}

/// First word of a fat binary's wrapper.
const WRAPPER: u32 = 0x4662_43b1;
/// First word of a fat binary.
const FAT: u32 = 0xba55_ed50;
/// First word of an ELF file.
const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");

/// Longest text or file that is believed.
///
/// 1 GiB: far beyond any image, far below what a wrong length would make us read.
const MAX_BYTES: usize = 1 << 30;

/// Reads the image at `address`; `None` if it is of no known format.
///
/// # Safety
/// An image of one of the formats, whole, lies at `address`, or at least eight readable bytes.
pub(crate) unsafe fn read_at(address: *const u8) -> Option<Image> {
    // SAFETY: the caller vouches for eight bytes.
    let first = unsafe { address.cast::<u32>().read_unaligned() };
    match first {
        WRAPPER => {
            let data = address.wrapping_add(8).cast::<*const u8>();
            // SAFETY: a wrapper has its data pointer at offset 8; the caller vouches for all of it.
            let data = unsafe { data.read_unaligned() };
            if data.is_null() {
                return None;
            }
            // SAFETY: a wrapper points to a fat binary, which the caller vouches for.
            read_fat(unsafe { slice_of(data, fat_bytes) }?)
        }
        // SAFETY: the caller vouches for the whole fat binary.
        FAT => read_fat(unsafe { slice_of(address, fat_bytes) }?),
        // SAFETY: the caller vouches for the whole file.
        ELF => read_elf(unsafe { slice_of(address, elf_bytes) }?),
        _ => {
            // SAFETY: what is none of the others is text, which the caller vouches to be terminated.
            let text = unsafe { std::ffi::CStr::from_ptr(address.cast()) };
            read_ptx(text.to_str().ok()?)
        }
    }
}

/// Reads an image that was read from a file.
pub(crate) fn read(bytes: &[u8]) -> Option<Image> {
    match u32_at(bytes, 0)? {
        FAT => read_fat(bytes),
        ELF => read_elf(bytes),
        _ => {
            let end = bytes.iter().position(|byte| *byte == 0);
            read_ptx(std::str::from_utf8(&bytes[..end.unwrap_or(bytes.len())]).ok()?)
        }
    }
}

/// The bytes at `address`, as many as their first 64 say.
///
/// # Safety
/// What lies there has a header of at least 64 bytes that says its true length.
unsafe fn slice_of<'a>(address: *const u8, length: fn(&[u8]) -> Option<usize>) -> Option<&'a [u8]> {
    // SAFETY: the caller vouches for the header.
    let header = unsafe { std::slice::from_raw_parts(address, 64) };
    let length = length(header).filter(|length| *length <= MAX_BYTES)?;
    // SAFETY: the caller vouches for the length that the header says.
    Some(unsafe { std::slice::from_raw_parts(address, length) })
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes_at(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes_at(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes_at(bytes, at).map(u64::from_le_bytes)
}

fn usize_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64_at(bytes, at)?).ok()
}

/// A fat binary's length: its header and what that says follows.
fn fat_bytes(header: &[u8]) -> Option<usize> {
    usize::from(u16_at(header, 6)?).checked_add(usize_at(header, 8)?)
}

/// An ELF file's length: the table of sections comes last in what compilers write, or the table of
/// segments does.
fn elf_bytes(header: &[u8]) -> Option<usize> {
    let sections = usize_at(header, 40)?
        .checked_add(usize::from(u16_at(header, 58)?) * usize::from(u16_at(header, 60)?))?;
    let segments = usize_at(header, 32)?
        .checked_add(usize::from(u16_at(header, 54)?) * usize::from(u16_at(header, 56)?))?;
    Some(sections.max(segments))
}

/// Entries of a fat binary: a header each, then PTX text or an ELF file, perhaps packed.
fn read_fat(bytes: &[u8]) -> Option<Image> {
    /// Kind of an entry: text.
    const PTX: u16 = 1;
    /// Kind of an entry: an ELF file.
    const CUBIN: u16 = 2;
    /// Flag of an entry: packed with LZ4.
    const LZ4: u64 = 0x2000;
    /// Flag of an entry: packed with Zstandard.
    const ZSTD: u64 = 0x8000;
    let mut image = Image::default();
    let mut at = usize::from(u16_at(bytes, 6)?);
    while let Some(kind) = u16_at(bytes, at) {
        let header = u32_at(bytes, at + 4)? as usize;
        let padded = usize_at(bytes, at + 8)?;
        let packed = u32_at(bytes, at + 16)? as usize;
        let flags = u64_at(bytes, at + 40)?;
        let content = bytes.get(at + header..at.checked_add(header)?.checked_add(padded)?)?;
        let unpacked = if flags & ZSTD != 0 {
            None
        } else if flags & LZ4 != 0 {
            let length = usize_at(bytes, at + 56)?;
            content
                .get(..packed)
                .and_then(|packed| unpack(packed, length))
        } else {
            Some(content.to_vec())
        };
        let found = match (kind, unpacked) {
            (PTX | CUBIN, Some(content)) => read(&content),
            (PTX | CUBIN, None) => None,
            _ => Some(Image::default()),
        };
        match found {
            Some(found) => image.absorb(found),
            None => image.is_opaque = true,
        }
        at = at.checked_add(header)?.checked_add(padded)?;
        if header == 0 {
            return None;
        }
    }
    Some(image)
}

impl Image {
    /// Adds what another image for another architecture has more.
    fn absorb(&mut self, other: Self) {
        for entry in other.entries {
            if self.entries.iter().all(|known| known.name != entry.name) {
                self.entries.push(entry);
            }
        }
        for variable in other.variables {
            if self
                .variables
                .iter()
                .all(|known| known.name != variable.name)
            {
                self.variables.push(variable);
            }
        }
        self.is_opaque |= other.is_opaque;
    }
}

/// Unpacks one LZ4 block to at most `length` bytes. Source: the format's description, `lz4_Block_format`.
fn unpack(packed: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(length.min(MAX_BYTES));
    let mut bytes = packed.iter().copied();
    while let Some(token) = bytes.next() {
        let literals = long_length(usize::from(token >> 4), &mut bytes)?;
        for _ in 0..literals {
            out.push(bytes.next()?);
        }
        let Some(low) = bytes.next() else {
            break;
        };
        let distance = usize::from(u16::from_le_bytes([low, bytes.next()?]));
        let matched = long_length(usize::from(token & 15), &mut bytes)? + 4;
        let start = out.len().checked_sub(distance).filter(|_| distance > 0)?;
        if out.len() + matched > length {
            return None;
        }
        for index in start..start + matched {
            out.push(out[index]);
        }
    }
    Some(out)
}

fn long_length(short: usize, bytes: &mut impl Iterator<Item = u8>) -> Option<usize> {
    let mut length = short;
    if short == 15 {
        loop {
            let more = bytes.next()?;
            length += usize::from(more);
            if more != 255 {
                break;
            }
        }
    }
    Some(length)
}

struct Section<'a> {
    name: &'a str,
    kind: u32,
    link: usize,
    content: &'a [u8],
}

fn text_at(bytes: &[u8], at: usize) -> Option<&str> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

fn sections(bytes: &[u8]) -> Option<Vec<Section<'_>>> {
    /// Kind of a section that has no bytes in the file.
    const NO_BITS: u32 = 8;
    let (start, size) = (usize_at(bytes, 40)?, usize::from(u16_at(bytes, 58)?));
    let count = usize::from(u16_at(bytes, 60)?);
    let header = |index: usize| bytes.get(start.checked_add(index * size)?..);
    let content = |header: &[u8]| -> Option<&[u8]> {
        let (at, length) = (usize_at(header, 24)?, usize_at(header, 32)?);
        bytes.get(at..at.checked_add(length)?)
    };
    let names = content(header(usize::from(u16_at(bytes, 62)?))?)?;
    (0..count)
        .map(|index| {
            let header = header(index)?;
            let kind = u32_at(header, 4)?;
            Some(Section {
                name: text_at(names, u32_at(header, 0)? as usize)?,
                kind,
                link: u32_at(header, 40)? as usize,
                content: if kind == NO_BITS {
                    &[]
                } else {
                    content(header)?
                },
            })
        })
        .collect()
}

/// Kernels are the global functions whose symbol is marked as an entry; parameters stand in the
/// section `.nv.info.` of the kernel.
fn read_elf(bytes: &[u8]) -> Option<Image> {
    /// Kind of a section with symbols.
    const SYMBOLS: u32 = 2;
    /// Mark of a kernel in a symbol's `st_other`.
    const IS_ENTRY: u8 = 0x10;
    /// Type of a symbol: data.
    const OBJECT: u8 = 1;
    /// Type of a symbol: function.
    const FUNCTION: u8 = 2;
    let sections = sections(bytes)?;
    let mut image = Image::default();
    for table in sections.iter().filter(|section| section.kind == SYMBOLS) {
        let names = sections.get(table.link)?.content;
        for symbol in table.content.chunks_exact(24) {
            let name = text_at(names, u32_at(symbol, 0)? as usize)?;
            let (kind, other) = (symbol[4] & 15, symbol[5]);
            let section = sections.get(usize::from(u16_at(symbol, 6)?));
            if kind == FUNCTION && other & IS_ENTRY != 0 {
                image.entries.push(Entry {
                    name: name.to_owned(),
                    parameters: elf_parameters(&sections, name),
                });
            } else if kind == OBJECT && section.is_some_and(|section| is_memory(section.name)) {
                image.variables.push(Variable {
                    name: name.to_owned(),
                    bytes: u64_at(symbol, 16)?,
                });
            }
        }
    }
    Some(image)
}

/// Sections that variables lie in: global memory, with or without first values, and the bank of
/// constants that programs declare.
fn is_memory(section: &str) -> bool {
    section.starts_with(".nv.global") || section == ".nv.constant3"
}

/// Parameters of a kernel from its attributes: a format byte, an attribute byte, and 16 bits that
/// are the value or the size of what follows.
fn elf_parameters(sections: &[Section<'_>], kernel: &str) -> Vec<(u32, u32)> {
    /// Format: a size and as many bytes follow.
    const SIZED: u8 = 4;
    /// Attribute: one parameter's place.
    const PARAMETER: u8 = 0x17;
    let wanted = |section: &&Section<'_>| section.name.strip_prefix(".nv.info.") == Some(kernel);
    let Some(info) = sections.iter().find(wanted) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut at = 0;
    while let (Some([format, attribute]), Some(value)) = (
        bytes_at::<2>(info.content, at),
        u16_at(info.content, at + 2),
    ) {
        at += 4;
        if format != SIZED {
            continue;
        }
        let parameter = (
            u16_at(info.content, at + 4),
            u16_at(info.content, at + 6),
            u32_at(info.content, at + 8),
        );
        if attribute == PARAMETER
            && let (Some(ordinal), Some(offset), Some(packed)) = parameter
        {
            // The size in units of a byte is the upper fourteen bits.
            found.push((ordinal, u32::from(offset), packed >> 18));
        }
        at += usize::from(value);
    }
    found.sort_unstable();
    found
        .into_iter()
        .map(|(_, offset, size)| (offset, size))
        .collect()
}

/// Text is PTX if it says its version; what it declares is found by its keywords.
fn read_ptx(text: &str) -> Option<Image> {
    let text = without_comments(text);
    if !text.contains(".version") {
        return None;
    }
    let mut image = Image::default();
    let mut rest = text.as_str();
    while let Some(at) = rest.find(".entry") {
        rest = &rest[at + ".entry".len()..];
        let name: String = identifier(rest.trim_start());
        let head = rest.split('{').next().unwrap_or_default();
        if !name.is_empty() {
            image.entries.push(Entry {
                name,
                parameters: ptx_parameters(head),
            });
        }
    }
    for statement in text.split([';', '{', '}']) {
        image.variables.extend(ptx_variable(statement));
    }
    Some(image)
}

fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        out.push_str(&rest[..at]);
        out.push(' ');
        let (end, close) = if rest[at..].starts_with("//") {
            ("\n", 0)
        } else {
            ("*/", 2)
        };
        match rest[at + 2..].find(end) {
            Some(length) => rest = &rest[at + 2 + length + close..],
            None => return out,
        }
    }
    out.push_str(rest);
    out
}

fn identifier(text: &str) -> String {
    let is_part = |sign: &char| sign.is_ascii_alphanumeric() || matches!(sign, '_' | '$' | '%');
    text.chars().take_while(is_part).collect()
}

/// Size in bytes of a PTX type.
fn ptx_size(word: &str) -> Option<u32> {
    match word {
        ".b8" | ".u8" | ".s8" => Some(1),
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => Some(2),
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" => Some(4),
        ".b64" | ".u64" | ".s64" | ".f64" => Some(8),
        ".b128" => Some(16),
        _ => None,
    }
}

/// Type, alignment and number of elements of a declaration; the number is 1 without brackets.
fn declared(text: &str) -> Option<(u32, u32, u64)> {
    let mut words = text.split_whitespace();
    let (mut size, mut align) = (None, None);
    while let Some(word) = words.next() {
        if word == ".align" {
            align = words.next().and_then(|word| word.parse().ok());
        } else if size.is_none() {
            size = ptx_size(word);
        }
    }
    let size = size?;
    let count = text
        .split('[')
        .skip(1)
        .filter_map(|part| part.split(']').next()?.trim().parse::<u64>().ok())
        .product();
    Some((size, align.unwrap_or(size), count))
}

/// Parameters lie one behind the other, each at its alignment.
fn ptx_parameters(head: &str) -> Vec<(u32, u32)> {
    let list = head
        .split('(')
        .nth(1)
        .and_then(|list| list.split(')').next());
    let mut found = Vec::new();
    let mut at = 0u32;
    for parameter in list.unwrap_or_default().split(',') {
        // Pointers carry `.ptr .global .align N` about what they point to, not about themselves.
        let own = match parameter.split_once(".ptr") {
            Some((own, _)) => own,
            None => parameter,
        };
        if let Some((size, align, count)) = declared(own) {
            let bytes = u32::try_from(u64::from(size) * count).unwrap_or(u32::MAX);
            at = at.next_multiple_of(align.max(1));
            found.push((at, bytes));
            at = at.saturating_add(bytes);
        }
    }
    found
}

/// A variable of a module: `.global` or `.const` outside functions.
///
/// Directives before it (`.target`, `.address_size`) end with their lines and not with a semicolon,
/// so they are part of the statement.
fn ptx_variable(statement: &str) -> Option<Variable> {
    let declaration = statement.split('=').next()?;
    let is_function = |word: &str| matches!(word, ".entry" | ".func" | ".param");
    let is_space = |word: &str| matches!(word, ".global" | ".const");
    let mut words = declaration.split_whitespace();
    if words.clone().any(is_function) || !words.any(is_space) {
        return None;
    }
    let declaration: Vec<&str> = words.collect();
    let declaration = declaration.join(" ");
    let (size, _, count) = declared(&declaration)?;
    let head = declaration.split('[').next()?;
    let name = identifier(head.split_whitespace().last()?);
    (!name.is_empty()).then_some(Variable {
        name,
        bytes: u64::from(size) * count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spin_kernel_is_found_with_its_parameter() {
        let image = read(sim::kernels::SPIN_PTX.as_bytes()).unwrap();
        assert_eq!(
            image.entries,
            [Entry {
                name: "spin_ns".to_owned(),
                parameters: vec![(0, 8)],
            }]
        );
        assert!(image.variables.is_empty() && !image.is_opaque);
    }

    #[test]
    fn parameters_lie_at_their_alignment_and_variables_have_their_size() {
        let text = "
            .version 8.0 // a comment with .entry no
            .target sm_90
            .address_size 64
            .visible .global .align 4 .u32 counters[10];
            .global .align 8 .b8 table[3][8] = {1, 2};
            .visible .entry _Z3addPf(
                .param .u32 a,
                .param .u64 .ptr .global .align 16 b,
                .param .align 8 .b8 c[24]
            )
            .maxntid 128, 1, 1
            { .reg .b32 %r<2>; ld.global.u32 %r1, [counters]; ret; }
            /* .entry neither */
            .entry bare { ret; }";
        let image = read(text.as_bytes()).unwrap();
        assert_eq!(image.entries.len(), 2);
        assert_eq!(image.entries[0].name, "_Z3addPf");
        assert_eq!(image.entries[0].parameters, [(0, 4), (8, 8), (16, 24)]);
        assert_eq!(image.entries[1].parameters, []);
        let sizes: Vec<(&str, u64)> = image
            .variables
            .iter()
            .map(|variable| (variable.name.as_str(), variable.bytes))
            .collect();
        assert_eq!(sizes, [("counters", 40), ("table", 24)]);
    }

    #[test]
    fn text_that_is_no_ptx_is_no_image() {
        assert_eq!(read(b"hello, world"), None);
        assert_eq!(read(b"abc"), None);
    }

    #[test]
    fn a_packed_block_unpacks_with_overlapping_matches() {
        // Four literals, then a match of nine bytes at distance four.
        let packed = [0x45, b'a', b'b', b'c', b'd', 4, 0, 0x10, b'!'];
        assert_eq!(unpack(&packed, 64).unwrap(), b"abcdabcdabcda!");
        assert_eq!(unpack(&[0x0f, 1, 0], 64), None);
    }

    #[test]
    fn a_fat_binary_has_what_its_entries_have() {
        let text = sim::kernels::SPIN_PTX.as_bytes();
        let mut entry = vec![0u8; 64];
        entry[0] = 1;
        entry[4..8].copy_from_slice(&64u32.to_le_bytes());
        entry[8..16].copy_from_slice(&(text.len() as u64).to_le_bytes());
        entry.extend_from_slice(text);
        let mut fat = FAT.to_le_bytes().to_vec();
        fat.extend_from_slice(&1u16.to_le_bytes());
        fat.extend_from_slice(&16u16.to_le_bytes());
        fat.extend_from_slice(&(entry.len() as u64).to_le_bytes());
        fat.extend_from_slice(&entry);
        assert_eq!(fat_bytes(&fat), Some(fat.len()));
        let image = read(&fat).unwrap();
        assert_eq!(image.entries[0].name, "spin_ns");
    }

    #[test]
    fn nonsense_behind_a_known_first_word_is_refused_without_a_panic() {
        for first in [FAT, ELF] {
            let mut bytes = first.to_le_bytes().to_vec();
            bytes.extend((0..200u32).map(|index| (index * 37) as u8));
            let _ = read(&bytes);
            for length in 0..bytes.len() {
                let _ = read(&bytes[..length]);
            }
        }
    }
}
