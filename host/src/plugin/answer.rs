//! The answer to a lookup, put together from values that come in any order.

use super::bindings::wasmill::operator::types::{self as wit, Error};
use crate::record::Column;

/// Values for a guest, in the order of the keys that it asked for.
pub(super) struct Answer {
    /// In the order in which they came; empty where absent.
    items: Column,
    present: Vec<u8>,
    /// Which key each item is for, once they no longer come in the order of the keys.
    came: Option<Vec<u32>>,
    bytes_max: u64,
    overflows: bool,
}

impl Answer {
    /// For `keys` keys (at most 2^32), whose values may have `bytes_max` bytes in all: the guest has no room for more.
    pub(super) fn new(keys: usize, bytes_max: u64) -> Self {
        let items = Column::with_capacity(keys, keys * 16);
        Self { items, present: vec![0; keys], came: None, bytes_max, overflows: false }
    }

    /// Takes the value of key `index`. To be called once for each key.
    pub(super) fn take(&mut self, index: usize, value: Option<&[u8]>) {
        if self.came.is_none() && index != self.items.len() {
            self.came = Some((0..self.items.len() as u32).collect());
        }
        if let Some(came) = &mut self.came {
            came.push(index as u32);
        }
        self.present[index] = u8::from(value.is_some());
        let value = value.unwrap_or_default();
        let bytes = (self.items.bytes().len() + value.len()) as u64;
        self.overflows |= bytes > self.bytes_max || !self.items.fits(value.len());
        self.items.push(if self.overflows { &[] } else { value });
    }

    /// The answer.
    ///
    /// # Errors
    /// When the values have more bytes than allowed.
    pub(super) fn finish(self) -> Result<wit::OptionalColumn, Error> {
        let Self { items, present, came, bytes_max, overflows } = self;
        if overflows {
            return Err(Error::LimitExceeded(format!(
                "the values are more than `limits.memory`, {bytes_max} bytes; ask for fewer keys at once"
            )));
        }
        let items = match came {
            None => items,
            Some(came) => in_order_of_keys(&items, &came, present.len()),
        };
        let (bytes, ends) = items.into_parts();
        Ok(wit::OptionalColumn { items: wit::Column { bytes, ends }, present })
    }
}

fn in_order_of_keys(items: &Column, came: &[u32], keys: usize) -> Column {
    let mut places = vec![0; keys];
    for (place, &index) in came.iter().enumerate() {
        places[index as usize] = place;
    }
    let mut ordered = Column::with_capacity(keys, items.bytes().len());
    places.into_iter().for_each(|place| ordered.push(items.get(place)));
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [Option<&[u8]>; 4] = [Some(b"zero"), None, Some(b""), Some(b"three")];

    fn answer(order: [usize; 4], bytes_max: u64) -> Result<wit::OptionalColumn, Error> {
        let mut answer = Answer::new(4, bytes_max);
        order.into_iter().for_each(|index| answer.take(index, KEYS[index]));
        answer.finish()
    }

    #[test]
    fn values_stand_in_the_order_of_their_keys_however_they_came() {
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [0, 1, 3, 2], [1, 3, 0, 2]] {
            let answer = answer(order, 9).unwrap();
            assert_eq!((answer.items.bytes.as_slice(), answer.present), (b"zerothree".as_slice(), vec![1, 0, 1, 1]));
            assert_eq!(answer.items.ends, [4, 4, 4, 9], "{order:?}");
        }
    }

    #[test]
    fn an_answer_that_the_guest_has_no_room_for_is_refused() {
        for order in [[0, 1, 2, 3], [3, 0, 2, 1]] {
            let Err(Error::LimitExceeded(text)) = answer(order, 8) else { panic!("9 bytes are more than 8") };
            assert!(text.contains("8 bytes; ask for fewer keys"), "{text}");
        }
    }
}
