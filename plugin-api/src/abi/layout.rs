//! Sizes and offsets of every table, as data.
//!
//! From this one list come the static assertions of the C header, so that a vendor's build fails
//! rather than a user's server, and the recorded layout that a frozen contract is compared with.
//! The list is exhaustive by construction: a field that is missing here does not compile.

use std::mem::{align_of, offset_of, size_of};

use super::*;

/// Layout of one struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StructLayout {
    /// Name of the struct.
    pub name: &'static str,
    /// Bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// Fields with their offsets in bytes.
    pub fields: Vec<(&'static str, usize)>,
}

macro_rules! layouts {
    ($($name:ident { $($field:ident),+ $(,)? })+) => {
        vec![$({
            // Naming every field is what keeps the list complete.
            #[allow(dead_code, unused_variables, reason = "only the pattern matters")]
            fn exhaustive(value: &$name) {
                let $name { $($field),+ } = value;
            }
            StructLayout {
                name: stringify!($name),
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: vec![$((stringify!($field), offset_of!($name, $field))),+],
            }
        }),+]
    };
}

/// The layout of every struct of the contract.
#[rustfmt::skip]
pub fn struct_layouts() -> Vec<StructLayout> {
    layouts! {
        TfStr { data, length }
        TfKeyValue { key, value }
        TfError { struct_size, status, message, details, detail_count, owner }
        TfDescriptor {
            magic, struct_size, abi_major, abi_minor, min_host_minor, reserved, flags, manifest,
            manifest_length, get_interface, version, build_id,
        }
        TfLogRecord { struct_size, level, target, message, file, line, field_count, fields }
        TfHostV1 {
            struct_size, reserved, context, log_enabled, log, memory_report, cancel_poll,
            config_get, tensor_read, get_interface,
        }
        TfConfigurationEntry { key, value, required, reserved }
        TfInit {
            struct_size, host_abi_major, agreed_abi_minor, host_version, host, configuration,
            configuration_count, log_level, reserved,
        }
        TfDeviceIdentity { struct_size, kind, pci_address, uuid, name, index, reserved }
        TfDeviceInfo {
            struct_size, memory, identity, arch, memory_bytes, free_memory_bytes, driver, facts,
            fact_count,
        }
        TfDeviceFit { struct_size, reasons, text }
        TfBackendV1 {
            struct_size, reserved, init, list_devices, fit_device, open_device, close_device,
            set_log_level, shutdown, release_error,
        }
        TfTensor {
            name, dtype, rank, shape, packed_bits, packed_group, data, bytes, id, file_offset,
            file_descriptor, reserved,
        }
        TfModel { struct_size, reserved, spec, tensors, tensor_count }
        TfEngineOptions {
            struct_size, lanes, context, rows, world, rank, reserved, kv_dtype, memory_limit,
        }
        TfMemoryPlan {
            struct_size, lanes, weight_bytes, mapped_bytes, lane_bytes, scratch_bytes,
            snapshot_bytes, snapshot_token_bytes, available_bytes,
        }
        TfProgress { struct_size, reserved, context, report }
        TfEngineInfo { struct_size, lanes, context, prefill_rows, output_rows, description }
        TfEngineMemory {
            struct_size, reserved, used_bytes, peak_bytes, lane_bytes, snapshot_bytes,
        }
        TfEngineStats { struct_size, reserved, rounds, rows, drawn, verified, accepted }
        TfSnapshot { struct_size, reserved, snapshot, position, bytes }
        TfEngineV1 {
            struct_size, reserved, plan, open_engine, info, lane_open, lane_close, round, snapshot,
            restore, fork, drop_snapshot, sleep, wake, memory, stats, close,
        }
        TfDrafterPlan {
            struct_size, drafts, weight_bytes, mapped_bytes, lane_bytes, scratch_bytes,
            snapshot_bytes, snapshot_token_bytes,
        }
        TfMtpV1 { struct_size, reserved, plan, open, close }
        TfDflashV1 { struct_size, reserved, plan, open, close }
        TfSampling { seed, temperature, top_p, min_p, top_k, reserved }
        TfLaneInput {
            struct_size, reserved, lane, position, tokens, token_count, draft_count, output_count,
            logprob_count, logprobs_wanted, next_draft_kind, next_draft_count,
            next_draft_confidence, sampling, allowed, mask_words, cancel,
        }
        TfRound { struct_size, reserved, lanes, lane_count }
        TfLogprob { token, logprob }
        TfLaneResult {
            struct_size, status, position, tokens, token_count, accepted, drafts,
            draft_probabilities, draft_count, draft_kind, logprobs, logprob_count,
        }
        TfRoundResult {
            struct_size, reserved, lanes, lane_count, forward_nanoseconds, sample_nanoseconds,
            draft_nanoseconds, degraded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_struct_has_hidden_padding_between_or_after_its_fields() {
        // Padding would be uninitialised bytes on the border, and a place where a field could
        // slip in without a change of size.
        for layout in struct_layouts() {
            let mut ends: Vec<usize> = layout.fields.iter().skip(1).map(|field| field.1).collect();
            ends.push(layout.size);
            for (field, end) in layout.fields.iter().zip(ends) {
                let width = end - field.1;
                assert!(
                    matches!(width, 2 | 4 | 8) || width % 8 == 0,
                    "{}.{} takes {width} bytes",
                    layout.name,
                    field.0
                );
            }
        }
    }

    #[test]
    fn structs_that_are_passed_by_pointer_begin_with_their_size() {
        let inner = ["TfStr", "TfKeyValue", "TfConfigurationEntry", "TfTensor", "TfSampling", "TfLogprob"];
        for layout in struct_layouts() {
            if layout.name == "TfDescriptor" {
                assert_eq!(layout.fields[1], ("struct_size", 8));
            } else if !inner.contains(&layout.name) {
                assert_eq!(layout.fields[0], ("struct_size", 0), "{}", layout.name);
            }
        }
    }
}
