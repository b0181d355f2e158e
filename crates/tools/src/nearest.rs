//! Proposals for mistyped names.

/// The most similar of `names`, if one is similar.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_ascii_lowercase();
    names
        .map(|candidate| (strsim::damerau_levenshtein(&name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= name.len().max(candidate.len()) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}
