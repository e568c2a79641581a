//! The rows of a tensor, in whatever order and pieces the source holds them.

/// Rows of equal length that lie in one or several pieces of memory.
#[derive(Clone, Debug)]
pub(super) struct Rows<'a> {
    /// Pieces of equal length, each a whole number of rows.
    pieces: Vec<&'a [u8]>,
    row_bytes: usize,
    order: Order,
}

/// In which order rows are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// As they lie.
    Stored,
    /// Rows of query or key heads that were put into rotary pairs by llama.cpp's tools: row `2 p + s` of a head
    /// becomes row `s * size / 2 + p`.
    FromPairs {
        /// Rows of a head, even.
        head_size: u64,
    },
}

impl<'a> Rows<'a> {
    /// Rows that lie in one piece. `bytes` is a whole number of rows.
    pub(super) fn whole(bytes: &'a [u8], row_bytes: u64) -> Rows<'a> {
        Rows::pieces(vec![bytes], row_bytes)
    }

    /// Rows that lie in pieces of equal length, each a whole number of rows.
    pub(super) fn pieces(pieces: Vec<&'a [u8]>, row_bytes: u64) -> Rows<'a> {
        let row_bytes = row_bytes as usize;
        debug_assert!(row_bytes > 0 && pieces.iter().all(|piece| piece.len().is_multiple_of(row_bytes)));
        debug_assert!(pieces.iter().all(|piece| piece.len() == pieces[0].len()));
        Rows { pieces, row_bytes, order: Order::Stored }
    }

    /// The same rows in another order.
    pub(super) fn ordered(self, order: Order) -> Rows<'a> {
        Rows { order, ..self }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        (self.pieces.len() * self.rows_of_piece()) as u64
    }

    /// Bytes of one row in the source.
    pub(super) fn row_bytes(&self) -> u64 {
        self.row_bytes as u64
    }

    /// The row that comes at `index`.
    pub(super) fn row(&self, index: u64) -> &'a [u8] {
        let stored = match self.order {
            Order::Stored => index,
            Order::FromPairs { head_size } => {
                let (head, row) = (index / head_size, index % head_size);
                let (half, pair) = (row / (head_size / 2), row % (head_size / 2));
                head * head_size + 2 * pair + half
            }
        } as usize;
        let per_piece = self.rows_of_piece();
        let start = stored % per_piece * self.row_bytes;
        &self.pieces[stored / per_piece][start..start + self.row_bytes]
    }

    fn rows_of_piece(&self) -> usize {
        self.pieces.first().map_or(0, |piece| piece.len() / self.row_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_one_after_another() {
        let rows = Rows::pieces(vec![&[1, 2, 3, 4], &[5, 6, 7, 8]], 2);
        let all: Vec<_> = (0..rows.count()).map(|row| rows.row(row)).collect();
        assert_eq!(all, [[1, 2], [3, 4], [5, 6], [7, 8]]);
    }

    #[test]
    fn pairs_become_halves_head_by_head() {
        let bytes: Vec<u8> = (0..12).collect();
        let rows = Rows::whole(&bytes, 1).ordered(Order::FromPairs { head_size: 6 });
        let all: Vec<u8> = (0..12).map(|row| rows.row(row)[0]).collect();
        assert_eq!(all, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
    }
}
