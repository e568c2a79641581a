//! Disjoint parts of one buffer for tasks that run side by side.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

/// A row-major buffer cut into tiles, each of which one task may take.
pub(crate) struct Tiles<'a> {
    data: *mut f32,
    rows: usize,
    width: usize,
    tile_rows: usize,
    tile_width: usize,
    taken: Vec<AtomicBool>,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer stands for an exclusive borrow of floats, which may move to and be used by
// other threads; the parts given out do not overlap (see `take`).
unsafe impl Send for Tiles<'_> {}
// SAFETY: as above; `take` is the only access and hands out each part once.
unsafe impl Sync for Tiles<'_> {}

/// One tile: some columns of some rows.
pub(crate) struct Tile<'a> {
    data: *mut f32,
    rows: usize,
    width: usize,
    columns: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

impl<'a> Tiles<'a> {
    /// Cuts the first `rows` rows of `width` floats into tiles of `tile_rows`
    /// by `tile_width`; the last ones of a row or column may be smaller.
    ///
    /// # Panics
    /// When the buffer is too small or a tile is empty.
    pub(crate) fn new(
        data: &'a mut [f32],
        rows: usize,
        width: usize,
        tile_rows: usize,
        tile_width: usize,
    ) -> Tiles<'a> {
        assert!(rows * width <= data.len(), "{rows} rows of {width} in {} floats", data.len());
        let across = width.div_ceil(tile_width);
        let tiles = rows.div_ceil(tile_rows) * across;
        Tiles {
            data: data.as_mut_ptr(),
            rows,
            width,
            tile_rows,
            tile_width,
            taken: (0..tiles).map(|_| AtomicBool::new(false)).collect(),
            borrow: PhantomData,
        }
    }

    /// How many tiles there are.
    pub(crate) fn count(&self) -> usize {
        self.taken.len()
    }

    /// Takes tile `index`, counted along rows.
    ///
    /// # Panics
    /// When there is no such tile, or it was taken before.
    pub(crate) fn take(&self, index: usize) -> Tile<'a> {
        assert!(!self.taken[index].swap(true, Ordering::Relaxed), "tile {index} was taken twice");
        let across = self.width.div_ceil(self.tile_width);
        let (row, column) = (index / across * self.tile_rows, index % across * self.tile_width);
        Tile {
            // SAFETY: `row < rows` and `column < width`, so the offset is inside the buffer.
            data: unsafe { self.data.add(row * self.width + column) },
            rows: self.tile_rows.min(self.rows - row),
            width: self.width,
            columns: self.tile_width.min(self.width - column),
            borrow: PhantomData,
        }
    }
}

impl Tile<'_> {
    /// The tile's part of its row `row`.
    ///
    /// # Panics
    /// When the tile has no such row.
    #[inline(always)]
    pub(crate) fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows);
        // SAFETY: tiles do not overlap, each exists once, and this borrow of the tile is
        // exclusive, so nothing else reaches these floats; `row < rows` keeps them in the buffer.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(row * self.width), self.columns) }
    }
}

/// A buffer cut into chunks of equal length, the last one perhaps shorter, each
/// of which one task may take.
pub(crate) struct Chunks<'a, T> {
    data: *mut T,
    length: usize,
    chunk: usize,
    taken: Vec<AtomicBool>,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: as for `Tiles`, of things that may move to other threads.
unsafe impl<T: Send> Send for Chunks<'_, T> {}
// SAFETY: as above; `take` is the only access and hands out each chunk once.
unsafe impl<T: Send> Sync for Chunks<'_, T> {}

impl<'a, T> Chunks<'a, T> {
    /// Cuts `data` into chunks of `chunk`.
    ///
    /// # Panics
    /// When `chunk` is zero.
    pub(crate) fn new(data: &'a mut [T], chunk: usize) -> Chunks<'a, T> {
        let chunks = data.len().div_ceil(chunk);
        Chunks {
            data: data.as_mut_ptr(),
            length: data.len(),
            chunk,
            taken: (0..chunks).map(|_| AtomicBool::new(false)).collect(),
            borrow: PhantomData,
        }
    }

    /// How many chunks there are.
    pub(crate) fn count(&self) -> usize {
        self.taken.len()
    }

    /// Takes chunk `index`.
    ///
    /// # Panics
    /// When there is no such chunk, or it was taken before.
    pub(crate) fn take(&self, index: usize) -> &'a mut [T] {
        assert!(!self.taken[index].swap(true, Ordering::Relaxed), "chunk {index} was taken twice");
        let start = index * self.chunk;
        // SAFETY: `index` is below the number of chunks, so `start` is inside the buffer, which is
        // borrowed for 'a; chunks do not overlap and each is handed out once.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), self.chunk.min(self.length - start)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_the_buffer_once() {
        let mut data = vec![0.0; 7 * 10 + 3];
        let tiles = Tiles::new(&mut data, 7, 10, 3, 4);
        assert_eq!(tiles.count(), 9);
        for index in 0..9 {
            let mut tile = tiles.take(index);
            for row in 0..tile.rows {
                tile.row(row).iter_mut().for_each(|x| *x += 1.0);
            }
        }
        assert!(data[..70].iter().all(|&x| x == 1.0));
        assert!(data[70..].iter().all(|&x| x == 0.0));
    }

    #[test]
    fn chunks_cover_the_buffer_once() {
        let mut data = [0; 11];
        let chunks = Chunks::new(&mut data, 4);
        assert_eq!(chunks.count(), 3);
        for index in 0..3 {
            chunks.take(index).iter_mut().for_each(|x| *x += 1);
        }
        assert_eq!(data, [1; 11]);
    }

    #[test]
    #[should_panic(expected = "chunk 0 was taken twice")]
    fn a_chunk_cannot_be_taken_twice() {
        let mut data = [0; 4];
        let chunks = Chunks::new(&mut data, 2);
        let _first = chunks.take(0);
        chunks.take(0);
    }

    #[test]
    #[should_panic(expected = "tile 1 was taken twice")]
    fn a_tile_cannot_be_taken_twice() {
        let mut data = vec![0.0; 4];
        let tiles = Tiles::new(&mut data, 2, 2, 1, 2);
        let _first = tiles.take(1);
        tiles.take(1);
    }
}
