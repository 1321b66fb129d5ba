//! How state becomes bytes and back.
//!
//! A [`Codec`] names the type that a function works with and its encoding. [`Raw`], [`Json`] and [`Fixed`] cover most needs;
//! others may be written anywhere. The bytes are stored with the table's schema version, so an encoding that
//! changes needs a new version.

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// An encoding of a table's values.
pub trait Codec: 'static {
    /// What the function works with.
    type Value: 'static;

    /// The value that `bytes` stand for.
    ///
    /// # Errors
    /// What is wrong with `bytes`.
    fn decode(bytes: &[u8]) -> Result<Self::Value, String>;

    /// Appends the bytes of `value` to `buffer`. Equal values should give equal bytes.
    ///
    /// # Errors
    /// Why `value` has no encoding. What was appended is then dropped.
    fn encode(value: &Self::Value, buffer: &mut Vec<u8>) -> Result<(), String>;
}

/// Bytes as they are.
#[derive(Debug)]
pub struct Raw;

impl Codec for Raw {
    type Value = Vec<u8>;

    fn decode(bytes: &[u8]) -> Result<Vec<u8>, String> {
        Ok(bytes.to_vec())
    }

    fn encode(value: &Vec<u8>, buffer: &mut Vec<u8>) -> Result<(), String> {
        buffer.extend_from_slice(value);
        Ok(())
    }
}

/// JSON: readable from outside, open to new fields (with `#[serde(default)]`), and several times the cost of [`Fixed`].
#[derive(Debug)]
pub struct Json<T>(PhantomData<T>);

impl<T: Serialize + DeserializeOwned + 'static> Codec for Json<T> {
    type Value = T;

    fn decode(bytes: &[u8]) -> Result<T, String> {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }

    fn encode(value: &T, buffer: &mut Vec<u8>) -> Result<(), String> {
        serde_json::to_writer(buffer, value).map_err(|error| error.to_string())
    }
}

/// Numbers of fixed width, little-endian, one after another: the cheapest codec. For integers, floats, tuples and arrays of
/// them, and structs made by [`fixed!`](crate::fixed).
#[derive(Debug)]
pub struct Fixed<T>(PhantomData<T>);

impl<T: FixedWidth> Codec for Fixed<T> {
    type Value = T;

    fn decode(bytes: &[u8]) -> Result<T, String> {
        if bytes.len() != T::WIDTH {
            return Err(format!("{} bytes where {} are expected", bytes.len(), T::WIDTH));
        }
        let mut rest = bytes;
        Ok(T::read(&mut rest))
    }

    fn encode(value: &T, buffer: &mut Vec<u8>) -> Result<(), String> {
        value.write(buffer);
        Ok(())
    }
}

/// A type whose encoding always takes the same number of bytes.
pub trait FixedWidth: 'static {
    /// The number of bytes.
    const WIDTH: usize;

    /// Reads a value from the front of `bytes`, which holds at least [`FixedWidth::WIDTH`], and moves `bytes` behind it.
    fn read(bytes: &mut &[u8]) -> Self;

    /// Appends the value's bytes.
    fn write(&self, buffer: &mut Vec<u8>);
}

macro_rules! fixed_number {
    ($($number:ty)*) => {$(
        impl FixedWidth for $number {
            const WIDTH: usize = size_of::<$number>();

            fn read(bytes: &mut &[u8]) -> Self {
                let (head, rest) = bytes.split_first_chunk().expect("the codec has checked the length");
                *bytes = rest;
                Self::from_le_bytes(*head)
            }

            fn write(&self, buffer: &mut Vec<u8>) {
                buffer.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

fixed_number!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64);

/// One byte: 0 is false, anything else true.
impl FixedWidth for bool {
    const WIDTH: usize = 1;

    fn read(bytes: &mut &[u8]) -> Self {
        u8::read(bytes) != 0
    }

    fn write(&self, buffer: &mut Vec<u8>) {
        buffer.push(u8::from(*self));
    }
}

impl<T: FixedWidth, const N: usize> FixedWidth for [T; N] {
    const WIDTH: usize = N * T::WIDTH;

    fn read(bytes: &mut &[u8]) -> Self {
        std::array::from_fn(|_| T::read(bytes))
    }

    fn write(&self, buffer: &mut Vec<u8>) {
        self.iter().for_each(|item| item.write(buffer));
    }
}

macro_rules! fixed_tuple {
    ($($name:ident)+) => {
        impl<$($name: FixedWidth),+> FixedWidth for ($($name,)+) {
            const WIDTH: usize = 0 $(+ $name::WIDTH)+;

            fn read(bytes: &mut &[u8]) -> Self {
                ($($name::read(bytes),)+)
            }

            #[allow(non_snake_case)]
            fn write(&self, buffer: &mut Vec<u8>) {
                let ($($name,)+) = self;
                $($name.write(buffer);)+
            }
        }
    };
}

fixed_tuple!(A);
fixed_tuple!(A B);
fixed_tuple!(A B C);
fixed_tuple!(A B C D);
fixed_tuple!(A B C D E);
fixed_tuple!(A B C D E F);

/// A struct of numbers for [`Fixed`](crate::codec::Fixed) tables: its fields are stored in the order in which they are written here.
///
/// ```
/// use wasmill_sdk::{Fixed, Table};
///
/// wasmill_sdk::fixed! {
///     /// What is known of an auction.
///     pub struct Stats {
///         pub count: u64,
///         pub maximum: u64,
///     }
/// }
/// const STATS: Table<Fixed<Stats>> = Table::new("stats");
/// ```
#[macro_export]
macro_rules! fixed {
    ($(#[$outer:meta])* $visibility:vis struct $name:ident {
        $($(#[$inner:meta])* $field_visibility:vis $field:ident : $kind:ty),+ $(,)?
    }) => {
        $(#[$outer])*
        #[derive(Debug, Clone, Copy, Default, PartialEq)]
        $visibility struct $name {
            $($(#[$inner])* $field_visibility $field: $kind),+
        }

        impl $crate::FixedWidth for $name {
            const WIDTH: usize = 0 $(+ <$kind as $crate::FixedWidth>::WIDTH)+;

            fn read(bytes: &mut &[u8]) -> Self {
                Self { $($field: <$kind as $crate::FixedWidth>::read(bytes)),+ }
            }

            fn write(&self, buffer: &mut Vec<u8>) {
                $($crate::FixedWidth::write(&self.$field, buffer);)+
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::fixed! {
        struct Point { x: i32, y: (u8, f64), seen: bool }
    }

    fn check<C: Codec>(value: C::Value, bytes: &[u8])
    where
        C::Value: PartialEq + std::fmt::Debug,
    {
        let mut buffer = b"before".to_vec();
        C::encode(&value, &mut buffer).unwrap();
        assert_eq!(&buffer[6..], bytes);
        assert_eq!(C::decode(bytes).unwrap(), value);
    }

    #[test]
    fn values_survive_their_encoding() {
        check::<Raw>(vec![1, 2, 3], &[1, 2, 3]);
        check::<Raw>(Vec::new(), &[]);
        check::<Json<Vec<u32>>>(vec![7, 8], b"[7,8]");
        check::<Json<Option<String>>>(None, b"null");
        check::<Fixed<u64>>(0x0102_0304_0506_0708, &[8, 7, 6, 5, 4, 3, 2, 1]);
        check::<Fixed<i16>>(-2, &[0xfe, 0xff]);
        check::<Fixed<f64>>(1.0, &[0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
        check::<Fixed<[u16; 3]>>([1, 2, 3], &[1, 0, 2, 0, 3, 0]);
        check::<Fixed<(bool, u8)>>((true, 9), &[1, 9]);
        let point = Point { x: -1, y: (4, 1.0), seen: true };
        check::<Fixed<Point>>(point, &[0xff, 0xff, 0xff, 0xff, 4, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 1]);
    }

    #[test]
    fn bytes_of_another_shape_are_an_error() {
        assert_eq!(Fixed::<u64>::decode(b"abc"), Err("3 bytes where 8 are expected".to_owned()));
        assert_eq!(Fixed::<(u8, u8)>::decode(b"abc"), Err("3 bytes where 2 are expected".to_owned()));
        assert!(Json::<u32>::decode(b"{}").unwrap_err().contains("expected u32"));
    }
}
