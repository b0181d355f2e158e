//! Records in one growing array, addressed by index. The array grows by an eighth, so little of it
//! is unused.

/// An array of records with a list of free records.
#[derive(Debug, Clone)]
pub(crate) struct Slab<T> {
    items: Vec<T>,
    free: Vec<u32>,
    max: u32,
}

impl<T> Slab<T> {
    /// A slab of at most `max` records.
    pub fn new(max: u32) -> Self {
        Self { items: Vec::new(), free: Vec::new(), max: max.min(u32::MAX - 1) }
    }

    /// Number of records in use.
    pub fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// True when no record can be added.
    pub fn is_full(&self) -> bool {
        self.free.is_empty() && self.items.len() >= self.max as usize
    }

    /// Adds a record. Returns its index, or `None` when the slab is full.
    pub fn add(&mut self, item: T) -> Option<u32> {
        if let Some(i) = self.free.pop() {
            self.items[i as usize] = item;
            return Some(i);
        }
        if self.is_full() {
            return None;
        }
        if self.items.len() == self.items.capacity() {
            self.items.reserve_exact(64 + self.items.len() / 8);
        }
        self.items.push(item);
        Some(self.items.len() as u32 - 1)
    }

    /// The record with this index. It may be a free record.
    pub fn get(&self, i: u32) -> Option<&T> {
        self.items.get(i as usize)
    }

    /// The records in use. The search visits all records, also the free ones.
    pub fn used(&self) -> impl Iterator<Item = &T> {
        let free: std::collections::HashSet<u32> = self.free.iter().copied().collect();
        self.items.iter().enumerate().filter(move |(i, _)| !free.contains(&(*i as u32))).map(|(_, item)| item)
    }

    /// Frees a record that is in use.
    pub fn remove(&mut self, i: u32) {
        self.free.push(i);
    }

    /// Allocated bytes.
    pub fn heap_bytes(&self) -> usize {
        self.items.capacity() * size_of::<T>() + self.free.capacity() * 4
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, i: u32) -> &T {
        &self.items[i as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, i: u32) -> &mut T {
        &mut self.items[i as usize]
    }
}
