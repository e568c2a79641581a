//! Machine codes of everything that can end a plugin's way to serving, and the
//! states of that way.

use std::fmt;

use serde::{Serialize, Serializer};

/// Where a plugin stands. States are passed in this order; each refusal names
/// the state that was not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// A sidecar, or a library that was named, was seen.
    Discovered,
    /// The manifest was parsed.
    ManifestRead,
    /// Everything that needs no code of the plugin was found right.
    Admitted,
    /// Something that needs no code of the plugin speaks against it.
    Refused,
    /// The library was opened; its constructors have run.
    Opened,
    /// The descriptor was compared with the manifest.
    CrossChecked,
    /// Interfaces were fetched and their layouts compared.
    Verified,
    /// `init` returned.
    Initialised,
    /// A device was opened.
    DeviceOpen,
    /// A model was opened.
    EngineOpen,
    /// A first request was taken.
    Serving,
    /// No new work is taken.
    Draining,
    /// `shutdown` returned; the library stays mapped.
    ShutDown,
    /// A crash or repeated timeouts; nothing is tried again until cleared.
    Quarantined,
}

impl State {
    /// The name used in JSON and in lists.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Discovered => "discovered",
            State::ManifestRead => "manifest-read",
            State::Admitted => "admitted",
            State::Refused => "refused",
            State::Opened => "opened",
            State::CrossChecked => "cross-checked",
            State::Verified => "verified",
            State::Initialised => "initialised",
            State::DeviceOpen => "device-open",
            State::EngineOpen => "engine-open",
            State::Serving => "serving",
            State::Draining => "draining",
            State::ShutDown => "shut-down",
            State::Quarantined => "quarantined",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident, $text:literal, $state:ident;)*) => {
        /// What went wrong, as programs read it. The text never changes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($(#[$doc])* $variant,)*
        }

        impl Code {
            /// Every code, in the order of the states.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// The text of the code.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $text,)* }
            }

            /// The state that a plugin with this error has not completed.
            pub const fn state(self) -> State {
                match self { $(Code::$variant => State::$state,)* }
            }
        }
    };
}

codes! {
    /// File, folder or a parent may be written by strangers.
    UnsafePath, "unsafe-path", Discovered;
    /// Hidden by an empty file or a link to `/dev/null` in a higher rank.
    Masked, "masked", Discovered;
    /// The same plugin stands in a higher rank.
    Shadowed, "shadowed", Discovered;
    /// Switched off by a file or a variable.
    Disabled, "disabled", Discovered;
    /// Two of the same id and variant in one rank.
    Duplicate, "duplicate", Discovered;

    /// Not TOML, not UTF-8, or too large.
    ManifestSyntax, "manifest-syntax", ManifestRead;
    /// Written for a later manifest format.
    ManifestTooNew, "manifest-too-new", ManifestRead;
    /// A key is missing or holds what it must not.
    ManifestField, "manifest-field", ManifestRead;
    /// The plugin insists on something that this host does not know.
    RequiresUnknown, "requires-unknown", ManifestRead;

    /// The library that the manifest names is not there.
    LibraryMissing, "library-missing", Admitted;
    /// A file, but not a plugin.
    NotAPlugin, "not-a-plugin", Admitted;
    /// For another operating system or processor.
    WrongArch, "wrong-arch", Admitted;
    /// Needs another or a later C library.
    LibcTooOld, "libc-too-old", Admitted;
    /// Needs instructions that this processor, or its system, lacks.
    CpuFeature, "cpu-feature", Admitted;
    /// Host and plugin share no interface version.
    AbiMismatch, "abi-mismatch", Admitted;
    /// The vendor did not test this host release.
    HostRange, "host-range", Admitted;
    /// The file differs from its pinned digest.
    PinMismatch, "pin-mismatch", Admitted;
    /// The signature is missing or wrong.
    Signature, "signature", Admitted;
    /// No device that the plugin can use.
    NoDevice, "no-device", Admitted;
    /// The device is there and may not be opened.
    DevicePermission, "device-permission", Admitted;
    /// The kernel driver is older than the plugin needs.
    DriverTooOld, "driver-too-old", Admitted;
    /// A library that it is linked against can not work here.
    NeedsLibrary, "needs-library", Admitted;
    /// Drafts of this kind are not made by the plugin.
    DrafterUnsupported, "drafter-unsupported", Admitted;
    /// A flag or its value is not served.
    FlagUnsupported, "flag-unsupported", Admitted;
    /// The number of ranks, or how they are named, does not work.
    WorldUnsupported, "world-unsupported", Admitted;
    /// The model's family is not served.
    FamilyUnsupported, "family-unsupported", Admitted;
    /// The weights are stored in a form that is not served.
    FormatUnsupported, "format-unsupported", Admitted;
    /// The key/value cache can not be kept in this type.
    KvUnsupported, "kv-unsupported", Admitted;
    /// More context than the model or the plugin has.
    ContextUnsupported, "context-unsupported", Admitted;

    /// The dynamic loader refused; its words are kept.
    DlopenFailed, "dlopen-failed", Opened;
    /// The file that was mapped is not the one that was checked.
    FileChanged, "file-changed", Opened;

    /// The descriptor does not begin as one.
    BadMagic, "bad-magic", CrossChecked;
    /// The copies of the manifest differ.
    ManifestMismatch, "manifest-mismatch", CrossChecked;
    /// Descriptor and manifest differ.
    DescriptorMismatch, "descriptor-mismatch", CrossChecked;

    /// A table is laid out otherwise than here.
    LayoutMismatch, "layout-mismatch", Verified;
    /// An interface that the manifest offers was not given.
    InterfaceMissing, "interface-missing", Verified;

    /// `init` returned an error.
    InitFailed, "init-failed", Initialised;
    /// `init` did not return in time.
    InitTimeout, "init-timeout", Initialised;
    /// A library of the vendor's runtime was not found.
    RuntimeMissing, "runtime-missing", Initialised;
    /// Two majors of one runtime are mapped.
    RuntimeMixed, "runtime-mixed", Initialised;
    /// A stub of the driver was found in place of the driver.
    StubDriver, "stub-driver", Initialised;

    /// The device is no longer there.
    DeviceGone, "device-gone", DeviceOpen;
    /// Somebody else holds the device.
    DeviceBusy, "device-busy", DeviceOpen;
    /// The plugin has no kernels for this device.
    ArchUnsupported, "arch-unsupported", DeviceOpen;
    /// Not enough memory.
    OutOfMemory, "out-of-memory", DeviceOpen;

    /// The checkpoint is damaged or not what it says.
    Checkpoint, "checkpoint", EngineOpen;
    /// The model does not fit with what was asked.
    MemoryPlan, "memory-plan", EngineOpen;
    /// The manifest declares it and the plugin refuses it.
    CapabilityLied, "capability-lied", EngineOpen;

    /// The engine can not go on.
    EngineFailed, "engine-failed", Serving;
    /// A call did not return in time.
    Watchdog, "watchdog", Serving;
    /// Requests were still running at the end of the time given.
    DrainTimeout, "drain-timeout", Draining;
    /// `shutdown` returned an error.
    ShutdownFailed, "shutdown-failed", ShutDown;
    /// It crashed or hung before.
    Quarantined, "quarantined", Quarantined;
}

impl Code {
    /// The status that a command ends with when this code ends it: a flag that
    /// is not served is a usage error, everything else a refusal.
    pub const fn exit_code(self) -> u8 {
        match self {
            Code::FlagUnsupported => 2,
            _ => 1,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_stand_in_the_order_of_the_states() {
        for (index, code) in Code::ALL.iter().enumerate() {
            assert!(Code::ALL[..index].iter().all(|earlier| earlier.as_str() != code.as_str()), "{code}");
            assert!(Code::ALL[..index].iter().all(|earlier| earlier.state() <= code.state()), "{code}");
        }
    }

    #[test]
    fn only_an_unserved_flag_is_a_usage_error() {
        for code in Code::ALL {
            assert_eq!(code.exit_code() == 2, *code == Code::FlagUnsupported, "{code}");
        }
    }
}
