//! The devices that a trace names.
//!
//! Owns: numbers for names, in order of first appearance. Promises: the same trace gives the same
//! numbers each time it is read; a look-up of the device of the record before is one comparison.
//! Never: holds more than [`DEVICES_MAX`] names; more mean that a column was misread.

use std::collections::BTreeMap;

/// Devices in a trace at most: what the own format's 16 bits hold. The largest public collection
/// (Tencent CBS) names 5,584.
pub const DEVICES_MAX: usize = 1 << 16;

/// A device of a trace: its place in the order of first appearance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceId(pub u16);

impl DeviceId {
    /// Where its name lies.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Names of a trace's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    names: Vec<String>,
    ids: BTreeMap<String, DeviceId>,
    last: Option<DeviceId>,
}

impl Devices {
    /// The number of a name; a new one when it was not seen before, `None` when there are too many.
    pub fn id(&mut self, name: &str) -> Option<DeviceId> {
        if let Some(last) = self.last.filter(|last| self.names[last.index()] == name) {
            return Some(last);
        }
        let id = match self.ids.get(name) {
            Some(id) => *id,
            None if self.names.len() < DEVICES_MAX => {
                let id = DeviceId(self.names.len() as u16);
                self.names.push(name.to_string());
                self.ids.insert(name.to_string(), id);
                id
            }
            None => return None,
        };
        self.last = Some(id);
        Some(id)
    }

    /// The device of this name, if the trace has it.
    pub fn find(&self, name: &str) -> Option<DeviceId> {
        self.ids.get(name).copied()
    }

    /// Its name; of a number that was never given, the number.
    pub fn name(&self, id: DeviceId) -> String {
        self.names.get(id.index()).cloned().unwrap_or_else(|| id.0.to_string())
    }

    /// All names, by number.
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_numbers_in_order_of_appearance() {
        let mut d = Devices::default();
        let ids: Vec<_> = ["b", "a", "b", "b", "c"].map(|n| d.id(n).unwrap().0).to_vec();
        assert_eq!(ids, [0, 1, 0, 0, 2]);
        assert_eq!((d.find("a"), d.find("x")), (Some(DeviceId(1)), None));
        assert_eq!((d.name(DeviceId(2)), d.name(DeviceId(9))), ("c".into(), "9".into()));
    }

    #[test]
    fn more_devices_than_16_bits_hold_are_refused() {
        let mut d = Devices::default();
        for n in 0..DEVICES_MAX {
            assert!(d.id(&n.to_string()).is_some());
        }
        assert_eq!(d.id("one more"), None);
        assert_eq!(d.id("7"), Some(DeviceId(7)));
    }
}
