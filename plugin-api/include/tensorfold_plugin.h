// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The contract between tensorfold and its backend plugins, for C and C++.
// Generated from the Rust crate tensorfold-plugin-api; do not edit.
//
// A plugin exports two data symbols, declared at the end of this file: its
// manifest and its descriptor. Link with hidden visibility and export nothing
// else. Functions that are C++ must be noexcept: no exception may cross.
//
// - Structs passed by pointer begin with struct_size, the size that the sender
//   knows. Refuse a smaller one than you need, accept a larger one.
// - Strings are pointer and length, UTF-8, without a terminating zero. A null
//   pointer with length 0 is an empty string or list.
// - Arguments are borrowed for the duration of the call unless the field says
//   otherwise. Who allocates frees.
// - Functions return a status TF_STATUS_*. Other than TF_STATUS_OK, they fill
//   the caller's TfError, which the caller hands to release_error once.
// - Thread classes: [any] from any thread, also concurrently; [engine] one call
//   at a time for each engine; [control] one call at a time for the whole
//   plugin, from one fixed thread.
// - Handles are never 0 and never used again.
// - Nothing happens before init: no constructor opens, starts or prints.

#ifndef TENSORFOLD_PLUGIN_H
#define TENSORFOLD_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

/**
 * Major number of the contract. 0 until all four of tensorfold's own plugins
 * run on it; from then on it is frozen.
 */
#define TF_ABI_MAJOR 0

/**
 * Minor number of the contract; equal to the minor of this crate's version.
 */
#define TF_ABI_MINOR 1

/**
 * Kind of device: a CPU.
 */
#define TF_DEVICE_CPU 1

/**
 * Kind of device: a GPU.
 */
#define TF_DEVICE_GPU 2

/**
 * Kind of device: a neural processing unit.
 */
#define TF_DEVICE_NPU 3

/**
 * Kind of device: any other accelerator.
 */
#define TF_DEVICE_ACCELERATOR 4

/**
 * Memory of a device: its own.
 */
#define TF_DEVICE_MEMORY_DEDICATED 1

/**
 * Memory of a device: shared with the CPU.
 */
#define TF_DEVICE_MEMORY_UNIFIED 2

/**
 * `fit_device`: the driver does not fit.
 */
#define TF_UNFIT_DRIVER 1

/**
 * `fit_device`: the device does not fit.
 */
#define TF_UNFIT_DEVICE 2

/**
 * `fit_device`: something that the plugin needs is missing.
 */
#define TF_UNFIT_MISSING_DEPENDENCY 4

/**
 * `fit_device`: another reason.
 */
#define TF_UNFIT_OTHER 8

/**
 * First eight bytes of a descriptor: `TFPLUGIN` in little-endian order.
 */
#define TF_PLUGIN_MAGIC 5641118439936378452

/**
 * A number that is not known or not counted. Never stands for zero.
 */
#define TF_UNKNOWN UINT64_MAX

/**
 * Element type: 32-bit float.
 */
#define TF_DTYPE_F32 1

/**
 * Element type: 16-bit float, IEEE half.
 */
#define TF_DTYPE_F16 2

/**
 * Element type: 16-bit float, bfloat.
 */
#define TF_DTYPE_BF16 3

/**
 * Element type: unsigned 32-bit integer (packed codes).
 */
#define TF_DTYPE_U32 4

/**
 * Element type: unsigned byte.
 */
#define TF_DTYPE_U8 5

/**
 * Axes that a `TfTensor` can have.
 */
#define TF_MAX_RANK 4

/**
 * Log level: something failed.
 */
#define TF_LOG_ERROR 1

/**
 * Log level: something is not as it should be.
 */
#define TF_LOG_WARN 2

/**
 * Log level: what a user may want to see.
 */
#define TF_LOG_INFO 3

/**
 * Log level: what a developer may want to see.
 */
#define TF_LOG_DEBUG 4

/**
 * Log level: everything.
 */
#define TF_LOG_TRACE 5

/**
 * Level filter: nothing at all.
 */
#define TF_LOG_OFF 0

/**
 * Memory that a plugin reports through `memory_report`: held by the device.
 */
#define TF_MEMORY_DEVICE 1

/**
 * Memory of the machine that the plugin holds.
 */
#define TF_MEMORY_HOST 2

/**
 * No drafts.
 */
#define TF_DRAFT_NONE 0

/**
 * Drafts by the checkpoint's own multi-token prediction head.
 */
#define TF_DRAFT_MTP 1

/**
 * Drafts by an external block drafter.
 */
#define TF_DRAFT_BLOCK 2

/**
 * The call did what was asked.
 */
#define TF_STATUS_OK 0

/**
 * An argument breaks the contract: null, too small, out of range.
 */
#define TF_STATUS_INVALID_ARGUMENT -1

/**
 * The plugin does not do this.
 */
#define TF_STATUS_UNSUPPORTED -2

/**
 * A handle, name or device does not exist.
 */
#define TF_STATUS_NOT_FOUND -3

/**
 * The operating system denies access.
 */
#define TF_STATUS_PERMISSION -4

/**
 * Not enough memory, of the device or of the machine.
 */
#define TF_STATUS_OUT_OF_MEMORY -5

/**
 * The device is gone or no longer answers.
 */
#define TF_STATUS_DEVICE_LOST -6

/**
 * Something took longer than its limit.
 */
#define TF_STATUS_TIMEOUT -7

/**
 * The host asked to stop.
 */
#define TF_STATUS_CANCELLED -8

/**
 * The object is in use, or a call of class `[engine]` overlapped another.
 */
#define TF_STATUS_BUSY -9

/**
 * A defect or an unforeseen state.
 */
#define TF_STATUS_INTERNAL -10

/**
 * A panic or exception was caught inside the plugin. The object that was
 * called must not be used again, except to close it.
 */
#define TF_STATUS_PANICKED -11

/**
 * A library that the plugin opens at run time is missing, too old or a stub.
 */
#define TF_STATUS_RUNTIME_MISSING -12

/**
 * UTF-8 text: `length` bytes at `data`, without a terminating zero.
 */
typedef struct TfStr {
    /**
     * First byte; may be null when `length` is 0.
     */
    const uint8_t *data;
    /**
     * Bytes.
     */
    uint64_t length;
} TfStr;

/**
 * What a plugin states about itself. It is data: reading it runs no code of
 * the plugin.
 */
typedef struct TfDescriptor {
    /**
     * `TF_PLUGIN_MAGIC`.
     */
    uint64_t magic;
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Major number of the contract that the plugin was built against.
     */
    uint16_t abi_major;
    /**
     * Minor number of it.
     */
    uint16_t abi_minor;
    /**
     * Oldest host minor that the plugin can live with.
     */
    uint16_t min_host_minor;
    /**
     * Zero.
     */
    uint16_t reserved;
    /**
     * Zero; no flag is defined yet.
     */
    uint32_t flags;
    /**
     * The manifest's TOML, the same bytes as in the section.
     */
    const uint8_t *manifest;
    /**
     * Bytes of `manifest`.
     */
    uint64_t manifest_length;
    /**
     * `[any]` Looks an interface up by id (`length` bytes at `id`, such as
     * `tensorfold.engine/1`). Returns its table, valid to the end of the process, or null when
     * the id is not offered. Works before `init`. Never null.
     */
    const void *(*get_interface)(const uint8_t *id, uint64_t length);
    /**
     * The plugin's version, the same as in the manifest.
     */
    struct TfStr version;
    /**
     * Something that differs between builds with different content.
     */
    struct TfStr build_id;
} TfDescriptor;

/**
 * A name and a value, both text.
 */
typedef struct TfKeyValue {
    /**
     * The name.
     */
    struct TfStr key;
    /**
     * The value.
     */
    struct TfStr value;
} TfKeyValue;

/**
 * One log record. Unknown levels are taken as errors.
 */
typedef struct TfLogRecord {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * One of the `TF_LOG_*` levels.
     */
    uint32_t level;
    /**
     * Which part of the plugin speaks; the host puts `plugin.<id>.` before it.
     */
    struct TfStr target;
    /**
     * The message, one line.
     */
    struct TfStr message;
    /**
     * Source file; may be empty.
     */
    struct TfStr file;
    /**
     * Source line; 0: unknown.
     */
    uint32_t line;
    /**
     * Entries of `fields`.
     */
    uint32_t field_count;
    /**
     * Structured values, as text.
     */
    const struct TfKeyValue *fields;
} TfLogRecord;

/**
 * `tensorfold.host/1`. Passed to `init`; valid to the end of the process.
 * All functions are `[any]`, never unwind, never block for long and never
 * call back into the plugin. The first argument of each is `context`.
 */
typedef struct TfHostV1 {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * Handed back to the host with every call.
     */
    void *context;
    /**
     * Whether a record of this level and target would be kept (1) or dropped (0).
     */
    uint8_t (*log_enabled)(void *context, uint32_t level, struct TfStr target);
    /**
     * Takes a record. The record is borrowed for the call.
     */
    void (*log)(void *context, const struct TfLogRecord *record);
    /**
     * Tells the host how much memory of a kind (`TF_MEMORY_*`) the plugin holds now, in bytes.
     */
    void (*memory_report)(void *context, uint32_t kind, uint64_t bytes);
    /**
     * Whether the work behind a cancel token should stop (1). Token 0 never stops.
     */
    uint8_t (*cancel_poll)(void *context, uint64_t token);
    /**
     * Reads a value of the plugin's configuration into `value` (owned by the host, valid to
     * the end of the process). Returns a status: not-found when the key is not set.
     */
    int32_t (*config_get)(void *context, struct TfStr key, struct TfStr *value);
    /**
     * Copies `length` bytes from `offset` of a tensor of the engine that is being opened into
     * `buffer`, for plugins that do not read mapped memory. Returns a status.
     */
    int32_t (*tensor_read)(void *context,
                           uint64_t tensor,
                           uint64_t offset,
                           uint8_t *buffer,
                           uint64_t length);
    /**
     * Further tables of the host by id (`length` bytes at `id`); null: not offered. Host
     * interfaces that the host's minor does not know are never offered.
     */
    const void *(*get_interface)(void *context, const uint8_t *id, uint64_t length);
} TfHostV1;

/**
 * One entry of the configuration given to `init`.
 */
typedef struct TfConfigurationEntry {
    /**
     * Name of an option of the manifest.
     */
    struct TfStr key;
    /**
     * Its value as text, already checked against the manifest's type.
     */
    struct TfStr value;
    /**
     * 1: `init` must fail with `unsupported`, naming the key, when it does not know it.
     * 0: an unknown key is ignored.
     */
    uint32_t required;
    /**
     * Zero.
     */
    uint32_t reserved;
} TfConfigurationEntry;

/**
 * What `init` is told.
 */
typedef struct TfInit {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * The host's contract, major number.
     */
    uint16_t host_abi_major;
    /**
     * The minor number that host and plugin agreed to work at.
     */
    uint16_t agreed_abi_minor;
    /**
     * The host's release, for logs.
     */
    struct TfStr host_version;
    /**
     * `tensorfold.host/1`; null when the plugin's manifest does not ask for it.
     */
    const struct TfHostV1 *host;
    /**
     * The configuration.
     */
    const struct TfConfigurationEntry *configuration;
    /**
     * Entries of `configuration`.
     */
    uint64_t configuration_count;
    /**
     * Level filter for logs at the start (`TF_LOG_*`).
     */
    uint32_t log_level;
    /**
     * Zero.
     */
    uint32_t reserved;
} TfInit;

/**
 * Who a device is, in terms that host and plugin share. Empty fields are unknown.
 */
typedef struct TfDeviceIdentity {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * One of `TF_DEVICE_CPU` ...
     */
    uint32_t kind;
    /**
     * PCI address, `0000:c1:00.0`; the first choice for comparing devices.
     */
    struct TfStr pci_address;
    /**
     * The vendor's unique id.
     */
    struct TfStr uuid;
    /**
     * Name for people.
     */
    struct TfStr name;
    /**
     * Position in the plugin's list, for devices with neither of the above.
     */
    uint32_t index;
    /**
     * Zero.
     */
    uint32_t reserved;
} TfDeviceIdentity;

/**
 * One device that the plugin sees.
 */
typedef struct TfDeviceInfo {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * `TF_DEVICE_MEMORY_DEDICATED` or `TF_DEVICE_MEMORY_UNIFIED`; 0: unknown.
     */
    uint32_t memory;
    /**
     * Who it is.
     */
    struct TfDeviceIdentity identity;
    /**
     * Architecture as spelt in manifests: `gfx1151`, `sm_90`, `avx512`.
     */
    struct TfStr arch;
    /**
     * All memory of the device in bytes; 0: unknown.
     */
    uint64_t memory_bytes;
    /**
     * Free memory in bytes now; 0: unknown.
     */
    uint64_t free_memory_bytes;
    /**
     * Version of the driver that was asked; may be empty.
     */
    struct TfStr driver;
    /**
     * Further facts. Owned by the plugin as everything in this struct: valid until the next
     * call of `list_devices` or `shutdown`.
     */
    const struct TfKeyValue *facts;
    /**
     * Entries of `facts`.
     */
    uint64_t fact_count;
} TfDeviceInfo;

/**
 * Whether a device can be used, and why not.
 */
typedef struct TfDeviceFit {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * 0: the device can be used; else a sum of `TF_UNFIT_*`.
     */
    uint32_t reasons;
    /**
     * One line for people; owned by the plugin, valid until the next call of `fit_device` or
     * `shutdown`.
     */
    struct TfStr text;
} TfDeviceFit;

/**
 * What went wrong. The caller sets `struct_size` and zeroes the rest; a
 * function that fails fills it; the caller then passes it to `release_error`
 * of the table `tensorfold.backend/1` exactly once.
 */
typedef struct TfError {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * The status that the function also returned.
     */
    int32_t status;
    /**
     * One line: what was wanted, what was found, what to do. Owned by the plugin.
     */
    struct TfStr message;
    /**
     * Further facts, such as `free_bytes`. Owned by the plugin.
     */
    const struct TfKeyValue *details;
    /**
     * Entries of `details`.
     */
    uint64_t detail_count;
    /**
     * The plugin's own pointer to what holds the above; null: nothing to free.
     */
    void *owner;
} TfError;

/**
 * `tensorfold.backend/1`. No function may be null.
 */
typedef struct TfBackendV1 {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * `[control]` Starts the plugin: opens drivers, no device. Called once, or again after
     * `shutdown`. `init` is borrowed for the call, its `host` table is kept.
     */
    int32_t (*init)(const struct TfInit *init, struct TfError *error);
    /**
     * `[control]` Writes up to `capacity` devices to `devices` and their true number to `count`.
     */
    int32_t (*list_devices)(struct TfDeviceInfo *devices,
                            uint64_t capacity,
                            uint64_t *count,
                            struct TfError *error);
    /**
     * `[control]` Says whether the plugin can use a device that the host names.
     */
    int32_t (*fit_device)(const struct TfDeviceIdentity *identity,
                          struct TfDeviceFit *fit,
                          struct TfError *error);
    /**
     * `[control]` Opens a device; `device` receives a handle, never 0.
     */
    int32_t (*open_device)(const struct TfDeviceIdentity *identity,
                           uint64_t *device,
                           struct TfError *error);
    /**
     * `[control]` Closes a device. `busy` while engines are open on it.
     */
    int32_t (*close_device)(uint64_t device, struct TfError *error);
    /**
     * `[any]` Sets the level filter for logs (`TF_LOG_*`).
     */
    void (*set_log_level)(uint32_t level);
    /**
     * `[control]` Ends the plugin: closes what is open and joins its threads. May be called
     * after a failed `init`, without `init`, and more than once.
     */
    int32_t (*shutdown)(struct TfError *error);
    /**
     * `[any]` Frees what a `TfError` of any table of this plugin holds and empties it.
     * An empty error or null is fine.
     */
    void (*release_error)(struct TfError *error);
} TfBackendV1;

/**
 * One tensor of the checkpoint.
 */
typedef struct TfTensor {
    /**
     * Canonical name, as listed in the crate's `model_spec` module.
     */
    struct TfStr name;
    /**
     * One of `TF_DTYPE_*`.
     */
    uint32_t dtype;
    /**
     * Axes in use.
     */
    uint32_t rank;
    /**
     * Extent of each axis, row-major; unused ones are 0.
     */
    uint64_t shape[TF_MAX_RANK];
    /**
     * Bits of a code when the tensor is packed (MLX affine): `shape` is then that of the packed
     * words; 0: plain.
     */
    uint32_t packed_bits;
    /**
     * Weights that share a scale and a bias; 0: plain.
     */
    uint32_t packed_group;
    /**
     * The bytes, mapped read-only and valid until the engine is closed. No alignment is
     * promised. Null in `plan`.
     */
    const uint8_t *data;
    /**
     * Bytes.
     */
    uint64_t bytes;
    /**
     * Identifies the tensor in calls of the host table.
     */
    uint64_t id;
    /**
     * Where the bytes stand in the file.
     */
    uint64_t file_offset;
    /**
     * The open file, borrowed until the engine is closed, for direct reads; -1: none.
     */
    int32_t file_descriptor;
    /**
     * Zero.
     */
    uint32_t reserved;
} TfTensor;

/**
 * A model: its facts and its tensors.
 */
typedef struct TfModel {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * The model description as JSON (the crate's `ModelSpec`).
     */
    struct TfStr spec;
    /**
     * The tensors, in no particular order.
     */
    const struct TfTensor *tensors;
    /**
     * Entries of `tensors`.
     */
    uint64_t tensor_count;
} TfModel;

/**
 * How an engine is to be opened.
 */
typedef struct TfEngineOptions {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Most lanes that may be open at once.
     */
    uint32_t lanes;
    /**
     * Most tokens that a lane may hold.
     */
    uint64_t context;
    /**
     * Most rows that one lane feeds in a round; prompt chunks are not longer.
     */
    uint32_t rows;
    /**
     * Ranks that work together; 1: alone.
     */
    uint32_t world;
    /**
     * This process's rank, from 0.
     */
    uint32_t rank;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * Element type of the key/value cache as spelt in manifests; empty: the plugin's choice.
     */
    struct TfStr kv_dtype;
    /**
     * Most bytes that the plugin may hold on the device; 0: no limit but the device's.
     */
    uint64_t memory_limit;
} TfEngineOptions;

/**
 * What an engine will hold, in bytes. Arithmetic only: nothing is read or allocated for it.
 */
typedef struct TfMemoryPlan {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Lanes that fit beside each other, at most as many as were asked for.
     */
    uint32_t lanes;
    /**
     * Weights that are copied or repacked.
     */
    uint64_t weight_bytes;
    /**
     * Weights that stay in the mapped files.
     */
    uint64_t mapped_bytes;
    /**
     * One lane at the full context.
     */
    uint64_t lane_bytes;
    /**
     * Working memory, once an engine.
     */
    uint64_t scratch_bytes;
    /**
     * A snapshot of an empty lane.
     */
    uint64_t snapshot_bytes;
    /**
     * What a snapshot grows by with every token that it holds.
     */
    uint64_t snapshot_token_bytes;
    /**
     * Memory that may be used now; `TF_UNKNOWN` when nobody knows.
     */
    uint64_t available_bytes;
} TfMemoryPlan;

/**
 * Reports progress of a long call; called on the calling thread.
 */
typedef struct TfProgress {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * Handed back with every report.
     */
    void *context;
    /**
     * `done` of `total` bytes, and what is being done. Returns 1 when the call should end with
     * `cancelled`. May be null.
     */
    uint8_t (*report)(void *context, uint64_t done, uint64_t total, struct TfStr what);
} TfProgress;

/**
 * Facts of an open engine that do not change.
 */
typedef struct TfEngineInfo {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Lanes that can be open at once.
     */
    uint32_t lanes;
    /**
     * Tokens that a lane can hold.
     */
    uint64_t context;
    /**
     * Rows of a prompt chunk that the engine likes best; a multiple of 64.
     */
    uint32_t prefill_rows;
    /**
     * Most rows of one lane whose draw can be wanted in a round.
     */
    uint32_t output_rows;
    /**
     * One line about how the engine runs, for the log. Owned by the engine.
     */
    struct TfStr description;
} TfEngineInfo;

/**
 * How a lane draws its tokens.
 */
typedef struct TfSampling {
    /**
     * Key of the noise.
     */
    uint64_t seed;
    /**
     * 0 or less: the greatest logit, lowest id on ties.
     */
    double temperature;
    /**
     * In (0, 1): the nucleus; otherwise off.
     */
    double top_p;
    /**
     * Above 0: tokens at least this likely, relative to the likeliest.
     */
    double min_p;
    /**
     * The so many likeliest tokens; 0: all.
     */
    uint32_t top_k;
    /**
     * Zero.
     */
    uint32_t reserved;
} TfSampling;

/**
 * What one lane does in a round.
 */
typedef struct TfLaneInput {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * The lane.
     */
    uint64_t lane;
    /**
     * Tokens that the lane holds; the plugin checks it.
     */
    uint64_t position;
    /**
     * Tokens to feed.
     */
    const uint32_t *tokens;
    /**
     * Entries of `tokens`; at least 1.
     */
    uint32_t token_count;
    /**
     * How many of the last tokens are drafts to verify.
     */
    uint32_t draft_count;
    /**
     * How many of the last rows draw a token; 0 while a prompt goes on.
     */
    uint32_t output_count;
    /**
     * The so many likeliest tokens are listed beside each draw; see `logprobs` of the result.
     */
    uint32_t logprob_count;
    /**
     * 1: log probabilities are wanted.
     */
    uint32_t logprobs_wanted;
    /**
     * Kind of drafts to make for the next round, `TF_DRAFT_*`.
     */
    uint32_t next_draft_kind;
    /**
     * Most drafts to make for the next round.
     */
    uint32_t next_draft_count;
    /**
     * A chain of drafts ends before a draft less likely than this; 0: never.
     */
    float next_draft_confidence;
    /**
     * How to draw.
     */
    struct TfSampling sampling;
    /**
     * Bit masks of allowed ids, one for each output row, `mask_words` words each, bit `i % 32`
     * of word `i / 32`; null: every selectable id.
     */
    const uint32_t *allowed;
    /**
     * Words of a mask.
     */
    uint64_t mask_words;
    /**
     * For the host's `cancel_poll`; 0: cannot be cancelled.
     */
    uint64_t cancel;
} TfLaneInput;

/**
 * A round.
 */
typedef struct TfRound {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * The lanes, each at most once.
     */
    const struct TfLaneInput *lanes;
    /**
     * Entries of `lanes`.
     */
    uint64_t lane_count;
} TfRound;

/**
 * One log probability.
 */
typedef struct TfLogprob {
    /**
     * The token.
     */
    uint32_t token;
    /**
     * Natural logarithm of its probability at temperature 1, over all selectable ids.
     */
    float logprob;
} TfLogprob;

/**
 * What one lane got. The host sets the pointers and capacities and zeroes the rest.
 */
typedef struct TfLaneResult {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * `ok`, or `cancelled`: the lane then holds what it held before the round, or some leading
     * part of a prompt chunk; `position` says which.
     */
    int32_t status;
    /**
     * Tokens that the lane holds now.
     */
    uint64_t position;
    /**
     * Receives the draws; capacity `output_count`.
     */
    uint32_t *tokens;
    /**
     * Draws written.
     */
    uint32_t token_count;
    /**
     * Drafts accepted.
     */
    uint32_t accepted;
    /**
     * Receives the next drafts; capacity `next_draft_count`.
     */
    uint32_t *drafts;
    /**
     * Receives the drafter's probability of each; same capacity.
     */
    float *draft_probabilities;
    /**
     * Drafts written.
     */
    uint32_t draft_count;
    /**
     * Their kind, `TF_DRAFT_*`.
     */
    uint32_t draft_kind;
    /**
     * Receives log probabilities: for each draw the drawn token's, then the `logprob_count`
     * likeliest, likeliest first; capacity `output_count * (logprob_count + 1)`. Null when none
     * are wanted.
     */
    struct TfLogprob *logprobs;
    /**
     * Entries written.
     */
    uint64_t logprob_count;
} TfLaneResult;

/**
 * What a round gave.
 */
typedef struct TfRoundResult {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * One for each lane of the round, in the same order.
     */
    struct TfLaneResult *lanes;
    /**
     * Entries of `lanes`.
     */
    uint64_t lane_count;
    /**
     * Time of the model's forward pass; `TF_UNKNOWN` when not measured.
     */
    uint64_t forward_nanoseconds;
    /**
     * Time of drawing and verification; `TF_UNKNOWN` when not measured.
     */
    uint64_t sample_nanoseconds;
    /**
     * Time of drafting; `TF_UNKNOWN` when not measured.
     */
    uint64_t draft_nanoseconds;
    /**
     * Which slower ways of computing were in use, for the record; may be empty. Owned by the
     * engine, valid until its next call.
     */
    struct TfStr degraded;
} TfRoundResult;

/**
 * A kept state of a lane.
 */
typedef struct TfSnapshot {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * Names the snapshot; never 0.
     */
    uint64_t snapshot;
    /**
     * Tokens that it holds.
     */
    uint64_t position;
    /**
     * Bytes that it holds.
     */
    uint64_t bytes;
} TfSnapshot;

/**
 * What an engine holds now, in bytes.
 */
typedef struct TfEngineMemory {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * All memory of the device held by the engine.
     */
    uint64_t used_bytes;
    /**
     * The most it ever held.
     */
    uint64_t peak_bytes;
    /**
     * Thereof lanes.
     */
    uint64_t lane_bytes;
    /**
     * Thereof snapshots.
     */
    uint64_t snapshot_bytes;
} TfEngineMemory;

/**
 * Counts since the engine was opened. `TF_UNKNOWN` stands for "not counted".
 */
typedef struct TfEngineStats {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * Calls of `round` that succeeded.
     */
    uint64_t rounds;
    /**
     * Rows that went through the model.
     */
    uint64_t rows;
    /**
     * Tokens drawn.
     */
    uint64_t drawn;
    /**
     * Drafts that were verified.
     */
    uint64_t verified;
    /**
     * Drafts thereof that were accepted.
     */
    uint64_t accepted;
} TfEngineStats;

/**
 * `tensorfold.engine/1`. No function may be null; one that the plugin cannot do returns
 * `unsupported`.
 */
typedef struct TfEngineV1 {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * `[any]` What `open_engine` would hold. Pure arithmetic on the model's facts; tensors come
     * without bytes. Fails where `open_engine` would refuse the model.
     */
    int32_t (*plan)(uint64_t device,
                    const struct TfModel *model,
                    const struct TfEngineOptions *options,
                    struct TfMemoryPlan *plan,
                    struct TfError *error);
    /**
     * `[control]` Loads a model; `engine` receives a handle, never 0. The tensors' bytes stay
     * valid until `close`; `model`, `options` and `progress` are borrowed for the call.
     */
    int32_t (*open_engine)(uint64_t device,
                           const struct TfModel *model,
                           const struct TfEngineOptions *options,
                           const struct TfProgress *progress,
                           uint64_t *engine,
                           struct TfError *error);
    /**
     * `[any]` Facts of the engine.
     */
    int32_t (*info)(uint64_t engine, struct TfEngineInfo *info, struct TfError *error);
    /**
     * `[engine]` Opens a lane with no tokens; `lane` receives a handle, never 0.
     */
    int32_t (*lane_open)(uint64_t engine, uint64_t *lane, struct TfError *error);
    /**
     * `[engine]` Closes a lane and frees what it held.
     */
    int32_t (*lane_close)(uint64_t engine, uint64_t lane, struct TfError *error);
    /**
     * `[engine]` One step for all lanes named: feeds, draws, verifies, commits, rolls back and
     * drafts. `result` is laid out by the host.
     */
    int32_t (*round)(uint64_t engine,
                     const struct TfRound *round,
                     struct TfRoundResult *result,
                     struct TfError *error);
    /**
     * `[engine]` Keeps the state of a lane, which stays as it is.
     */
    int32_t (*snapshot)(uint64_t engine,
                        uint64_t lane,
                        struct TfSnapshot *snapshot,
                        struct TfError *error);
    /**
     * `[engine]` Makes a lane hold a kept state, whatever it held; the snapshot stays.
     */
    int32_t (*restore)(uint64_t engine, uint64_t lane, uint64_t snapshot, struct TfError *error);
    /**
     * `[engine]` Opens a lane that holds what `lane` holds.
     */
    int32_t (*fork)(uint64_t engine, uint64_t lane, uint64_t *fork, struct TfError *error);
    /**
     * `[engine]` Frees a snapshot.
     */
    int32_t (*drop_snapshot)(uint64_t engine, uint64_t snapshot, struct TfError *error);
    /**
     * `[engine]` Gives memory back without closing: level 1 keeps weights in the machine's
     * memory, level 2 keeps nothing. Lanes and snapshots must be gone, else `busy`.
     */
    int32_t (*sleep)(uint64_t engine, uint32_t level, struct TfError *error);
    /**
     * `[engine]` Undoes `sleep`.
     */
    int32_t (*wake)(uint64_t engine, const struct TfProgress *progress, struct TfError *error);
    /**
     * `[any]` What the engine holds now.
     */
    int32_t (*memory)(uint64_t engine, struct TfEngineMemory *memory, struct TfError *error);
    /**
     * `[any]` Counts.
     */
    int32_t (*stats)(uint64_t engine, struct TfEngineStats *stats, struct TfError *error);
    /**
     * `[control]` Closes an engine with its lanes and snapshots.
     */
    int32_t (*close)(uint64_t engine, struct TfError *error);
} TfEngineV1;

/**
 * What a drafter adds to the `TfMemoryPlan`(super::TfMemoryPlan) of its engine, in bytes.
 */
typedef struct TfDrafterPlan {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Most drafts that it makes for a lane in a round.
     */
    uint32_t drafts;
    /**
     * Weights that are copied or repacked.
     */
    uint64_t weight_bytes;
    /**
     * Weights that stay in the mapped files.
     */
    uint64_t mapped_bytes;
    /**
     * One lane at the full context.
     */
    uint64_t lane_bytes;
    /**
     * Working memory, once an engine.
     */
    uint64_t scratch_bytes;
    /**
     * A snapshot of an empty lane.
     */
    uint64_t snapshot_bytes;
    /**
     * What a snapshot grows by with every token that it holds.
     */
    uint64_t snapshot_token_bytes;
} TfDrafterPlan;

/**
 * `tensorfold.mtp/1`: the checkpoint's own multi-token prediction head. Its tensors are part of
 * the model that `open_engine` was given.
 */
typedef struct TfMtpV1 {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * `[any]` What `open` would hold. Pure arithmetic on the model's facts; tensors come without
     * bytes. Fails where `open` would refuse the head.
     */
    int32_t (*plan)(uint64_t device,
                    const struct TfModel *model,
                    const struct TfEngineOptions *options,
                    struct TfDrafterPlan *plan,
                    struct TfError *error);
    /**
     * `[engine]` Makes the head ready; `drafts` receives the most drafts that it makes for a
     * lane in a round. `busy` while lanes or snapshots are there.
     */
    int32_t (*open)(uint64_t engine,
                    const struct TfProgress *progress,
                    uint32_t *drafts,
                    struct TfError *error);
    /**
     * `[engine]` Frees what `open` took. `busy` while lanes or snapshots are there.
     */
    int32_t (*close)(uint64_t engine, struct TfError *error);
} TfMtpV1;

/**
 * `tensorfold.dflash/1`: an external block drafter, DFlash or DFlash2.
 */
typedef struct TfDflashV1 {
    /**
     * Size of this struct in bytes.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * `[any]` What `open` would hold. `drafter` is a model whose `spec` is a drafter description
     * (the crate's `DrafterSpec`). Pure arithmetic; tensors come without bytes. Fails where
     * `open` would refuse the drafter.
     */
    int32_t (*plan)(uint64_t device,
                    const struct TfModel *model,
                    const struct TfModel *drafter,
                    const struct TfEngineOptions *options,
                    struct TfDrafterPlan *plan,
                    struct TfError *error);
    /**
     * `[engine]` Loads a drafter; `drafts` receives the most drafts that it makes for a lane in
     * a round. The tensors' bytes stay valid until `close` of the drafter or of the engine;
     * `drafter` and `progress` are borrowed for the call. `busy` while lanes, snapshots or
     * another drafter are there.
     */
    int32_t (*open)(uint64_t engine,
                    const struct TfModel *drafter,
                    const struct TfProgress *progress,
                    uint32_t *drafts,
                    struct TfError *error);
    /**
     * `[engine]` Frees the drafter. `busy` while lanes or snapshots are there.
     */
    int32_t (*close)(uint64_t engine, struct TfError *error);
} TfDflashV1;

#if defined(__APPLE__)
#define TENSORFOLD_MANIFEST_PLACE "__DATA,__tf_manifest"
#else
#define TENSORFOLD_MANIFEST_PLACE ".tensorfold.manifest"
#endif

/**
 * Marks the definition of the manifest, so that a host finds it without loading the library:
 *
 *     TENSORFOLD_MANIFEST const unsigned char TENSORFOLD_PLUGIN_MANIFEST[] = {
 *     #include "manifest.inc" // the bytes of the TOML file, as made by `xxd -i < FILE`
 *     };
 */
#define TENSORFOLD_MANIFEST __attribute__((section(TENSORFOLD_MANIFEST_PLACE), used))

/** Marks the definition of the descriptor. */
#define TENSORFOLD_EXPORT __attribute__((used))

#ifdef __cplusplus
extern "C" {
#endif

// Both are visible by these declarations; a definition need not say so again.

/** The manifest's TOML. */
extern __attribute__((visibility("default"))) const unsigned char TENSORFOLD_PLUGIN_MANIFEST[];

/** What the plugin states about itself. */
extern __attribute__((visibility("default"))) const TfDescriptor tensorfold_plugin_v1;

#ifdef __cplusplus
} // extern "C"
#endif

#ifdef __cplusplus
#define TENSORFOLD_ASSERT(condition, text) static_assert(condition, text)
#else
#define TENSORFOLD_ASSERT(condition, text) _Static_assert(condition, text)
#endif

#if UINTPTR_MAX == UINT64_MAX
TENSORFOLD_ASSERT(sizeof(TfStr) == 16, "size of TfStr");
TENSORFOLD_ASSERT(offsetof(TfStr, data) == 0, "place of TfStr.data");
TENSORFOLD_ASSERT(offsetof(TfStr, length) == 8, "place of TfStr.length");
TENSORFOLD_ASSERT(sizeof(TfKeyValue) == 32, "size of TfKeyValue");
TENSORFOLD_ASSERT(offsetof(TfKeyValue, key) == 0, "place of TfKeyValue.key");
TENSORFOLD_ASSERT(offsetof(TfKeyValue, value) == 16, "place of TfKeyValue.value");
TENSORFOLD_ASSERT(sizeof(TfError) == 48, "size of TfError");
TENSORFOLD_ASSERT(offsetof(TfError, struct_size) == 0, "place of TfError.struct_size");
TENSORFOLD_ASSERT(offsetof(TfError, status) == 4, "place of TfError.status");
TENSORFOLD_ASSERT(offsetof(TfError, message) == 8, "place of TfError.message");
TENSORFOLD_ASSERT(offsetof(TfError, details) == 24, "place of TfError.details");
TENSORFOLD_ASSERT(offsetof(TfError, detail_count) == 32, "place of TfError.detail_count");
TENSORFOLD_ASSERT(offsetof(TfError, owner) == 40, "place of TfError.owner");
TENSORFOLD_ASSERT(sizeof(TfDescriptor) == 80, "size of TfDescriptor");
TENSORFOLD_ASSERT(offsetof(TfDescriptor, magic) == 0, "place of TfDescriptor.magic");
TENSORFOLD_ASSERT(offsetof(TfDescriptor, struct_size) == 8, "place of TfDescriptor.struct_size");
TENSORFOLD_ASSERT(offsetof(TfDescriptor, abi_major) == 12, "place of TfDescriptor.abi_major");
TENSORFOLD_ASSERT(offsetof(TfDescriptor, abi_minor) == 14, "place of TfDescriptor.abi_minor");
TENSORFOLD_ASSERT(offsetof(TfDescriptor, min_host_minor) == 16, "place of TfDescriptor.min_host_minor");
TENSORFOLD_ASSERT(offsetof(TfDescriptor, reserved) == 18, "place of TfDescriptor.reserved");
TENSORFOLD_ASSERT(offsetof(TfDescriptor, flags) == 20, "place of TfDescriptor.flags");
TENSORFOLD_ASSERT(offsetof(TfDescriptor, manifest) == 24, "place of TfDescriptor.manifest");
TENSORFOLD_ASSERT(offsetof(TfDescriptor, manifest_length) == 32, "place of TfDescriptor.manifest_length");
TENSORFOLD_ASSERT(offsetof(TfDescriptor, get_interface) == 40, "place of TfDescriptor.get_interface");
TENSORFOLD_ASSERT(offsetof(TfDescriptor, version) == 48, "place of TfDescriptor.version");
TENSORFOLD_ASSERT(offsetof(TfDescriptor, build_id) == 64, "place of TfDescriptor.build_id");
TENSORFOLD_ASSERT(sizeof(TfLogRecord) == 72, "size of TfLogRecord");
TENSORFOLD_ASSERT(offsetof(TfLogRecord, struct_size) == 0, "place of TfLogRecord.struct_size");
TENSORFOLD_ASSERT(offsetof(TfLogRecord, level) == 4, "place of TfLogRecord.level");
TENSORFOLD_ASSERT(offsetof(TfLogRecord, target) == 8, "place of TfLogRecord.target");
TENSORFOLD_ASSERT(offsetof(TfLogRecord, message) == 24, "place of TfLogRecord.message");
TENSORFOLD_ASSERT(offsetof(TfLogRecord, file) == 40, "place of TfLogRecord.file");
TENSORFOLD_ASSERT(offsetof(TfLogRecord, line) == 56, "place of TfLogRecord.line");
TENSORFOLD_ASSERT(offsetof(TfLogRecord, field_count) == 60, "place of TfLogRecord.field_count");
TENSORFOLD_ASSERT(offsetof(TfLogRecord, fields) == 64, "place of TfLogRecord.fields");
TENSORFOLD_ASSERT(sizeof(TfHostV1) == 72, "size of TfHostV1");
TENSORFOLD_ASSERT(offsetof(TfHostV1, struct_size) == 0, "place of TfHostV1.struct_size");
TENSORFOLD_ASSERT(offsetof(TfHostV1, reserved) == 4, "place of TfHostV1.reserved");
TENSORFOLD_ASSERT(offsetof(TfHostV1, context) == 8, "place of TfHostV1.context");
TENSORFOLD_ASSERT(offsetof(TfHostV1, log_enabled) == 16, "place of TfHostV1.log_enabled");
TENSORFOLD_ASSERT(offsetof(TfHostV1, log) == 24, "place of TfHostV1.log");
TENSORFOLD_ASSERT(offsetof(TfHostV1, memory_report) == 32, "place of TfHostV1.memory_report");
TENSORFOLD_ASSERT(offsetof(TfHostV1, cancel_poll) == 40, "place of TfHostV1.cancel_poll");
TENSORFOLD_ASSERT(offsetof(TfHostV1, config_get) == 48, "place of TfHostV1.config_get");
TENSORFOLD_ASSERT(offsetof(TfHostV1, tensor_read) == 56, "place of TfHostV1.tensor_read");
TENSORFOLD_ASSERT(offsetof(TfHostV1, get_interface) == 64, "place of TfHostV1.get_interface");
TENSORFOLD_ASSERT(sizeof(TfConfigurationEntry) == 40, "size of TfConfigurationEntry");
TENSORFOLD_ASSERT(offsetof(TfConfigurationEntry, key) == 0, "place of TfConfigurationEntry.key");
TENSORFOLD_ASSERT(offsetof(TfConfigurationEntry, value) == 16, "place of TfConfigurationEntry.value");
TENSORFOLD_ASSERT(offsetof(TfConfigurationEntry, required) == 32, "place of TfConfigurationEntry.required");
TENSORFOLD_ASSERT(offsetof(TfConfigurationEntry, reserved) == 36, "place of TfConfigurationEntry.reserved");
TENSORFOLD_ASSERT(sizeof(TfInit) == 56, "size of TfInit");
TENSORFOLD_ASSERT(offsetof(TfInit, struct_size) == 0, "place of TfInit.struct_size");
TENSORFOLD_ASSERT(offsetof(TfInit, host_abi_major) == 4, "place of TfInit.host_abi_major");
TENSORFOLD_ASSERT(offsetof(TfInit, agreed_abi_minor) == 6, "place of TfInit.agreed_abi_minor");
TENSORFOLD_ASSERT(offsetof(TfInit, host_version) == 8, "place of TfInit.host_version");
TENSORFOLD_ASSERT(offsetof(TfInit, host) == 24, "place of TfInit.host");
TENSORFOLD_ASSERT(offsetof(TfInit, configuration) == 32, "place of TfInit.configuration");
TENSORFOLD_ASSERT(offsetof(TfInit, configuration_count) == 40, "place of TfInit.configuration_count");
TENSORFOLD_ASSERT(offsetof(TfInit, log_level) == 48, "place of TfInit.log_level");
TENSORFOLD_ASSERT(offsetof(TfInit, reserved) == 52, "place of TfInit.reserved");
TENSORFOLD_ASSERT(sizeof(TfDeviceIdentity) == 64, "size of TfDeviceIdentity");
TENSORFOLD_ASSERT(offsetof(TfDeviceIdentity, struct_size) == 0, "place of TfDeviceIdentity.struct_size");
TENSORFOLD_ASSERT(offsetof(TfDeviceIdentity, kind) == 4, "place of TfDeviceIdentity.kind");
TENSORFOLD_ASSERT(offsetof(TfDeviceIdentity, pci_address) == 8, "place of TfDeviceIdentity.pci_address");
TENSORFOLD_ASSERT(offsetof(TfDeviceIdentity, uuid) == 24, "place of TfDeviceIdentity.uuid");
TENSORFOLD_ASSERT(offsetof(TfDeviceIdentity, name) == 40, "place of TfDeviceIdentity.name");
TENSORFOLD_ASSERT(offsetof(TfDeviceIdentity, index) == 56, "place of TfDeviceIdentity.index");
TENSORFOLD_ASSERT(offsetof(TfDeviceIdentity, reserved) == 60, "place of TfDeviceIdentity.reserved");
TENSORFOLD_ASSERT(sizeof(TfDeviceInfo) == 136, "size of TfDeviceInfo");
TENSORFOLD_ASSERT(offsetof(TfDeviceInfo, struct_size) == 0, "place of TfDeviceInfo.struct_size");
TENSORFOLD_ASSERT(offsetof(TfDeviceInfo, memory) == 4, "place of TfDeviceInfo.memory");
TENSORFOLD_ASSERT(offsetof(TfDeviceInfo, identity) == 8, "place of TfDeviceInfo.identity");
TENSORFOLD_ASSERT(offsetof(TfDeviceInfo, arch) == 72, "place of TfDeviceInfo.arch");
TENSORFOLD_ASSERT(offsetof(TfDeviceInfo, memory_bytes) == 88, "place of TfDeviceInfo.memory_bytes");
TENSORFOLD_ASSERT(offsetof(TfDeviceInfo, free_memory_bytes) == 96, "place of TfDeviceInfo.free_memory_bytes");
TENSORFOLD_ASSERT(offsetof(TfDeviceInfo, driver) == 104, "place of TfDeviceInfo.driver");
TENSORFOLD_ASSERT(offsetof(TfDeviceInfo, facts) == 120, "place of TfDeviceInfo.facts");
TENSORFOLD_ASSERT(offsetof(TfDeviceInfo, fact_count) == 128, "place of TfDeviceInfo.fact_count");
TENSORFOLD_ASSERT(sizeof(TfDeviceFit) == 24, "size of TfDeviceFit");
TENSORFOLD_ASSERT(offsetof(TfDeviceFit, struct_size) == 0, "place of TfDeviceFit.struct_size");
TENSORFOLD_ASSERT(offsetof(TfDeviceFit, reasons) == 4, "place of TfDeviceFit.reasons");
TENSORFOLD_ASSERT(offsetof(TfDeviceFit, text) == 8, "place of TfDeviceFit.text");
TENSORFOLD_ASSERT(sizeof(TfBackendV1) == 72, "size of TfBackendV1");
TENSORFOLD_ASSERT(offsetof(TfBackendV1, struct_size) == 0, "place of TfBackendV1.struct_size");
TENSORFOLD_ASSERT(offsetof(TfBackendV1, reserved) == 4, "place of TfBackendV1.reserved");
TENSORFOLD_ASSERT(offsetof(TfBackendV1, init) == 8, "place of TfBackendV1.init");
TENSORFOLD_ASSERT(offsetof(TfBackendV1, list_devices) == 16, "place of TfBackendV1.list_devices");
TENSORFOLD_ASSERT(offsetof(TfBackendV1, fit_device) == 24, "place of TfBackendV1.fit_device");
TENSORFOLD_ASSERT(offsetof(TfBackendV1, open_device) == 32, "place of TfBackendV1.open_device");
TENSORFOLD_ASSERT(offsetof(TfBackendV1, close_device) == 40, "place of TfBackendV1.close_device");
TENSORFOLD_ASSERT(offsetof(TfBackendV1, set_log_level) == 48, "place of TfBackendV1.set_log_level");
TENSORFOLD_ASSERT(offsetof(TfBackendV1, shutdown) == 56, "place of TfBackendV1.shutdown");
TENSORFOLD_ASSERT(offsetof(TfBackendV1, release_error) == 64, "place of TfBackendV1.release_error");
TENSORFOLD_ASSERT(sizeof(TfTensor) == 104, "size of TfTensor");
TENSORFOLD_ASSERT(offsetof(TfTensor, name) == 0, "place of TfTensor.name");
TENSORFOLD_ASSERT(offsetof(TfTensor, dtype) == 16, "place of TfTensor.dtype");
TENSORFOLD_ASSERT(offsetof(TfTensor, rank) == 20, "place of TfTensor.rank");
TENSORFOLD_ASSERT(offsetof(TfTensor, shape) == 24, "place of TfTensor.shape");
TENSORFOLD_ASSERT(offsetof(TfTensor, packed_bits) == 56, "place of TfTensor.packed_bits");
TENSORFOLD_ASSERT(offsetof(TfTensor, packed_group) == 60, "place of TfTensor.packed_group");
TENSORFOLD_ASSERT(offsetof(TfTensor, data) == 64, "place of TfTensor.data");
TENSORFOLD_ASSERT(offsetof(TfTensor, bytes) == 72, "place of TfTensor.bytes");
TENSORFOLD_ASSERT(offsetof(TfTensor, id) == 80, "place of TfTensor.id");
TENSORFOLD_ASSERT(offsetof(TfTensor, file_offset) == 88, "place of TfTensor.file_offset");
TENSORFOLD_ASSERT(offsetof(TfTensor, file_descriptor) == 96, "place of TfTensor.file_descriptor");
TENSORFOLD_ASSERT(offsetof(TfTensor, reserved) == 100, "place of TfTensor.reserved");
TENSORFOLD_ASSERT(sizeof(TfModel) == 40, "size of TfModel");
TENSORFOLD_ASSERT(offsetof(TfModel, struct_size) == 0, "place of TfModel.struct_size");
TENSORFOLD_ASSERT(offsetof(TfModel, reserved) == 4, "place of TfModel.reserved");
TENSORFOLD_ASSERT(offsetof(TfModel, spec) == 8, "place of TfModel.spec");
TENSORFOLD_ASSERT(offsetof(TfModel, tensors) == 24, "place of TfModel.tensors");
TENSORFOLD_ASSERT(offsetof(TfModel, tensor_count) == 32, "place of TfModel.tensor_count");
TENSORFOLD_ASSERT(sizeof(TfEngineOptions) == 56, "size of TfEngineOptions");
TENSORFOLD_ASSERT(offsetof(TfEngineOptions, struct_size) == 0, "place of TfEngineOptions.struct_size");
TENSORFOLD_ASSERT(offsetof(TfEngineOptions, lanes) == 4, "place of TfEngineOptions.lanes");
TENSORFOLD_ASSERT(offsetof(TfEngineOptions, context) == 8, "place of TfEngineOptions.context");
TENSORFOLD_ASSERT(offsetof(TfEngineOptions, rows) == 16, "place of TfEngineOptions.rows");
TENSORFOLD_ASSERT(offsetof(TfEngineOptions, world) == 20, "place of TfEngineOptions.world");
TENSORFOLD_ASSERT(offsetof(TfEngineOptions, rank) == 24, "place of TfEngineOptions.rank");
TENSORFOLD_ASSERT(offsetof(TfEngineOptions, reserved) == 28, "place of TfEngineOptions.reserved");
TENSORFOLD_ASSERT(offsetof(TfEngineOptions, kv_dtype) == 32, "place of TfEngineOptions.kv_dtype");
TENSORFOLD_ASSERT(offsetof(TfEngineOptions, memory_limit) == 48, "place of TfEngineOptions.memory_limit");
TENSORFOLD_ASSERT(sizeof(TfMemoryPlan) == 64, "size of TfMemoryPlan");
TENSORFOLD_ASSERT(offsetof(TfMemoryPlan, struct_size) == 0, "place of TfMemoryPlan.struct_size");
TENSORFOLD_ASSERT(offsetof(TfMemoryPlan, lanes) == 4, "place of TfMemoryPlan.lanes");
TENSORFOLD_ASSERT(offsetof(TfMemoryPlan, weight_bytes) == 8, "place of TfMemoryPlan.weight_bytes");
TENSORFOLD_ASSERT(offsetof(TfMemoryPlan, mapped_bytes) == 16, "place of TfMemoryPlan.mapped_bytes");
TENSORFOLD_ASSERT(offsetof(TfMemoryPlan, lane_bytes) == 24, "place of TfMemoryPlan.lane_bytes");
TENSORFOLD_ASSERT(offsetof(TfMemoryPlan, scratch_bytes) == 32, "place of TfMemoryPlan.scratch_bytes");
TENSORFOLD_ASSERT(offsetof(TfMemoryPlan, snapshot_bytes) == 40, "place of TfMemoryPlan.snapshot_bytes");
TENSORFOLD_ASSERT(offsetof(TfMemoryPlan, snapshot_token_bytes) == 48, "place of TfMemoryPlan.snapshot_token_bytes");
TENSORFOLD_ASSERT(offsetof(TfMemoryPlan, available_bytes) == 56, "place of TfMemoryPlan.available_bytes");
TENSORFOLD_ASSERT(sizeof(TfProgress) == 24, "size of TfProgress");
TENSORFOLD_ASSERT(offsetof(TfProgress, struct_size) == 0, "place of TfProgress.struct_size");
TENSORFOLD_ASSERT(offsetof(TfProgress, reserved) == 4, "place of TfProgress.reserved");
TENSORFOLD_ASSERT(offsetof(TfProgress, context) == 8, "place of TfProgress.context");
TENSORFOLD_ASSERT(offsetof(TfProgress, report) == 16, "place of TfProgress.report");
TENSORFOLD_ASSERT(sizeof(TfEngineInfo) == 40, "size of TfEngineInfo");
TENSORFOLD_ASSERT(offsetof(TfEngineInfo, struct_size) == 0, "place of TfEngineInfo.struct_size");
TENSORFOLD_ASSERT(offsetof(TfEngineInfo, lanes) == 4, "place of TfEngineInfo.lanes");
TENSORFOLD_ASSERT(offsetof(TfEngineInfo, context) == 8, "place of TfEngineInfo.context");
TENSORFOLD_ASSERT(offsetof(TfEngineInfo, prefill_rows) == 16, "place of TfEngineInfo.prefill_rows");
TENSORFOLD_ASSERT(offsetof(TfEngineInfo, output_rows) == 20, "place of TfEngineInfo.output_rows");
TENSORFOLD_ASSERT(offsetof(TfEngineInfo, description) == 24, "place of TfEngineInfo.description");
TENSORFOLD_ASSERT(sizeof(TfEngineMemory) == 40, "size of TfEngineMemory");
TENSORFOLD_ASSERT(offsetof(TfEngineMemory, struct_size) == 0, "place of TfEngineMemory.struct_size");
TENSORFOLD_ASSERT(offsetof(TfEngineMemory, reserved) == 4, "place of TfEngineMemory.reserved");
TENSORFOLD_ASSERT(offsetof(TfEngineMemory, used_bytes) == 8, "place of TfEngineMemory.used_bytes");
TENSORFOLD_ASSERT(offsetof(TfEngineMemory, peak_bytes) == 16, "place of TfEngineMemory.peak_bytes");
TENSORFOLD_ASSERT(offsetof(TfEngineMemory, lane_bytes) == 24, "place of TfEngineMemory.lane_bytes");
TENSORFOLD_ASSERT(offsetof(TfEngineMemory, snapshot_bytes) == 32, "place of TfEngineMemory.snapshot_bytes");
TENSORFOLD_ASSERT(sizeof(TfEngineStats) == 48, "size of TfEngineStats");
TENSORFOLD_ASSERT(offsetof(TfEngineStats, struct_size) == 0, "place of TfEngineStats.struct_size");
TENSORFOLD_ASSERT(offsetof(TfEngineStats, reserved) == 4, "place of TfEngineStats.reserved");
TENSORFOLD_ASSERT(offsetof(TfEngineStats, rounds) == 8, "place of TfEngineStats.rounds");
TENSORFOLD_ASSERT(offsetof(TfEngineStats, rows) == 16, "place of TfEngineStats.rows");
TENSORFOLD_ASSERT(offsetof(TfEngineStats, drawn) == 24, "place of TfEngineStats.drawn");
TENSORFOLD_ASSERT(offsetof(TfEngineStats, verified) == 32, "place of TfEngineStats.verified");
TENSORFOLD_ASSERT(offsetof(TfEngineStats, accepted) == 40, "place of TfEngineStats.accepted");
TENSORFOLD_ASSERT(sizeof(TfSnapshot) == 32, "size of TfSnapshot");
TENSORFOLD_ASSERT(offsetof(TfSnapshot, struct_size) == 0, "place of TfSnapshot.struct_size");
TENSORFOLD_ASSERT(offsetof(TfSnapshot, reserved) == 4, "place of TfSnapshot.reserved");
TENSORFOLD_ASSERT(offsetof(TfSnapshot, snapshot) == 8, "place of TfSnapshot.snapshot");
TENSORFOLD_ASSERT(offsetof(TfSnapshot, position) == 16, "place of TfSnapshot.position");
TENSORFOLD_ASSERT(offsetof(TfSnapshot, bytes) == 24, "place of TfSnapshot.bytes");
TENSORFOLD_ASSERT(sizeof(TfEngineV1) == 128, "size of TfEngineV1");
TENSORFOLD_ASSERT(offsetof(TfEngineV1, struct_size) == 0, "place of TfEngineV1.struct_size");
TENSORFOLD_ASSERT(offsetof(TfEngineV1, reserved) == 4, "place of TfEngineV1.reserved");
TENSORFOLD_ASSERT(offsetof(TfEngineV1, plan) == 8, "place of TfEngineV1.plan");
TENSORFOLD_ASSERT(offsetof(TfEngineV1, open_engine) == 16, "place of TfEngineV1.open_engine");
TENSORFOLD_ASSERT(offsetof(TfEngineV1, info) == 24, "place of TfEngineV1.info");
TENSORFOLD_ASSERT(offsetof(TfEngineV1, lane_open) == 32, "place of TfEngineV1.lane_open");
TENSORFOLD_ASSERT(offsetof(TfEngineV1, lane_close) == 40, "place of TfEngineV1.lane_close");
TENSORFOLD_ASSERT(offsetof(TfEngineV1, round) == 48, "place of TfEngineV1.round");
TENSORFOLD_ASSERT(offsetof(TfEngineV1, snapshot) == 56, "place of TfEngineV1.snapshot");
TENSORFOLD_ASSERT(offsetof(TfEngineV1, restore) == 64, "place of TfEngineV1.restore");
TENSORFOLD_ASSERT(offsetof(TfEngineV1, fork) == 72, "place of TfEngineV1.fork");
TENSORFOLD_ASSERT(offsetof(TfEngineV1, drop_snapshot) == 80, "place of TfEngineV1.drop_snapshot");
TENSORFOLD_ASSERT(offsetof(TfEngineV1, sleep) == 88, "place of TfEngineV1.sleep");
TENSORFOLD_ASSERT(offsetof(TfEngineV1, wake) == 96, "place of TfEngineV1.wake");
TENSORFOLD_ASSERT(offsetof(TfEngineV1, memory) == 104, "place of TfEngineV1.memory");
TENSORFOLD_ASSERT(offsetof(TfEngineV1, stats) == 112, "place of TfEngineV1.stats");
TENSORFOLD_ASSERT(offsetof(TfEngineV1, close) == 120, "place of TfEngineV1.close");
TENSORFOLD_ASSERT(sizeof(TfDrafterPlan) == 56, "size of TfDrafterPlan");
TENSORFOLD_ASSERT(offsetof(TfDrafterPlan, struct_size) == 0, "place of TfDrafterPlan.struct_size");
TENSORFOLD_ASSERT(offsetof(TfDrafterPlan, drafts) == 4, "place of TfDrafterPlan.drafts");
TENSORFOLD_ASSERT(offsetof(TfDrafterPlan, weight_bytes) == 8, "place of TfDrafterPlan.weight_bytes");
TENSORFOLD_ASSERT(offsetof(TfDrafterPlan, mapped_bytes) == 16, "place of TfDrafterPlan.mapped_bytes");
TENSORFOLD_ASSERT(offsetof(TfDrafterPlan, lane_bytes) == 24, "place of TfDrafterPlan.lane_bytes");
TENSORFOLD_ASSERT(offsetof(TfDrafterPlan, scratch_bytes) == 32, "place of TfDrafterPlan.scratch_bytes");
TENSORFOLD_ASSERT(offsetof(TfDrafterPlan, snapshot_bytes) == 40, "place of TfDrafterPlan.snapshot_bytes");
TENSORFOLD_ASSERT(offsetof(TfDrafterPlan, snapshot_token_bytes) == 48, "place of TfDrafterPlan.snapshot_token_bytes");
TENSORFOLD_ASSERT(sizeof(TfMtpV1) == 32, "size of TfMtpV1");
TENSORFOLD_ASSERT(offsetof(TfMtpV1, struct_size) == 0, "place of TfMtpV1.struct_size");
TENSORFOLD_ASSERT(offsetof(TfMtpV1, reserved) == 4, "place of TfMtpV1.reserved");
TENSORFOLD_ASSERT(offsetof(TfMtpV1, plan) == 8, "place of TfMtpV1.plan");
TENSORFOLD_ASSERT(offsetof(TfMtpV1, open) == 16, "place of TfMtpV1.open");
TENSORFOLD_ASSERT(offsetof(TfMtpV1, close) == 24, "place of TfMtpV1.close");
TENSORFOLD_ASSERT(sizeof(TfDflashV1) == 32, "size of TfDflashV1");
TENSORFOLD_ASSERT(offsetof(TfDflashV1, struct_size) == 0, "place of TfDflashV1.struct_size");
TENSORFOLD_ASSERT(offsetof(TfDflashV1, reserved) == 4, "place of TfDflashV1.reserved");
TENSORFOLD_ASSERT(offsetof(TfDflashV1, plan) == 8, "place of TfDflashV1.plan");
TENSORFOLD_ASSERT(offsetof(TfDflashV1, open) == 16, "place of TfDflashV1.open");
TENSORFOLD_ASSERT(offsetof(TfDflashV1, close) == 24, "place of TfDflashV1.close");
TENSORFOLD_ASSERT(sizeof(TfSampling) == 40, "size of TfSampling");
TENSORFOLD_ASSERT(offsetof(TfSampling, seed) == 0, "place of TfSampling.seed");
TENSORFOLD_ASSERT(offsetof(TfSampling, temperature) == 8, "place of TfSampling.temperature");
TENSORFOLD_ASSERT(offsetof(TfSampling, top_p) == 16, "place of TfSampling.top_p");
TENSORFOLD_ASSERT(offsetof(TfSampling, min_p) == 24, "place of TfSampling.min_p");
TENSORFOLD_ASSERT(offsetof(TfSampling, top_k) == 32, "place of TfSampling.top_k");
TENSORFOLD_ASSERT(offsetof(TfSampling, reserved) == 36, "place of TfSampling.reserved");
TENSORFOLD_ASSERT(sizeof(TfLaneInput) == 128, "size of TfLaneInput");
TENSORFOLD_ASSERT(offsetof(TfLaneInput, struct_size) == 0, "place of TfLaneInput.struct_size");
TENSORFOLD_ASSERT(offsetof(TfLaneInput, reserved) == 4, "place of TfLaneInput.reserved");
TENSORFOLD_ASSERT(offsetof(TfLaneInput, lane) == 8, "place of TfLaneInput.lane");
TENSORFOLD_ASSERT(offsetof(TfLaneInput, position) == 16, "place of TfLaneInput.position");
TENSORFOLD_ASSERT(offsetof(TfLaneInput, tokens) == 24, "place of TfLaneInput.tokens");
TENSORFOLD_ASSERT(offsetof(TfLaneInput, token_count) == 32, "place of TfLaneInput.token_count");
TENSORFOLD_ASSERT(offsetof(TfLaneInput, draft_count) == 36, "place of TfLaneInput.draft_count");
TENSORFOLD_ASSERT(offsetof(TfLaneInput, output_count) == 40, "place of TfLaneInput.output_count");
TENSORFOLD_ASSERT(offsetof(TfLaneInput, logprob_count) == 44, "place of TfLaneInput.logprob_count");
TENSORFOLD_ASSERT(offsetof(TfLaneInput, logprobs_wanted) == 48, "place of TfLaneInput.logprobs_wanted");
TENSORFOLD_ASSERT(offsetof(TfLaneInput, next_draft_kind) == 52, "place of TfLaneInput.next_draft_kind");
TENSORFOLD_ASSERT(offsetof(TfLaneInput, next_draft_count) == 56, "place of TfLaneInput.next_draft_count");
TENSORFOLD_ASSERT(offsetof(TfLaneInput, next_draft_confidence) == 60, "place of TfLaneInput.next_draft_confidence");
TENSORFOLD_ASSERT(offsetof(TfLaneInput, sampling) == 64, "place of TfLaneInput.sampling");
TENSORFOLD_ASSERT(offsetof(TfLaneInput, allowed) == 104, "place of TfLaneInput.allowed");
TENSORFOLD_ASSERT(offsetof(TfLaneInput, mask_words) == 112, "place of TfLaneInput.mask_words");
TENSORFOLD_ASSERT(offsetof(TfLaneInput, cancel) == 120, "place of TfLaneInput.cancel");
TENSORFOLD_ASSERT(sizeof(TfRound) == 24, "size of TfRound");
TENSORFOLD_ASSERT(offsetof(TfRound, struct_size) == 0, "place of TfRound.struct_size");
TENSORFOLD_ASSERT(offsetof(TfRound, reserved) == 4, "place of TfRound.reserved");
TENSORFOLD_ASSERT(offsetof(TfRound, lanes) == 8, "place of TfRound.lanes");
TENSORFOLD_ASSERT(offsetof(TfRound, lane_count) == 16, "place of TfRound.lane_count");
TENSORFOLD_ASSERT(sizeof(TfLogprob) == 8, "size of TfLogprob");
TENSORFOLD_ASSERT(offsetof(TfLogprob, token) == 0, "place of TfLogprob.token");
TENSORFOLD_ASSERT(offsetof(TfLogprob, logprob) == 4, "place of TfLogprob.logprob");
TENSORFOLD_ASSERT(sizeof(TfLaneResult) == 72, "size of TfLaneResult");
TENSORFOLD_ASSERT(offsetof(TfLaneResult, struct_size) == 0, "place of TfLaneResult.struct_size");
TENSORFOLD_ASSERT(offsetof(TfLaneResult, status) == 4, "place of TfLaneResult.status");
TENSORFOLD_ASSERT(offsetof(TfLaneResult, position) == 8, "place of TfLaneResult.position");
TENSORFOLD_ASSERT(offsetof(TfLaneResult, tokens) == 16, "place of TfLaneResult.tokens");
TENSORFOLD_ASSERT(offsetof(TfLaneResult, token_count) == 24, "place of TfLaneResult.token_count");
TENSORFOLD_ASSERT(offsetof(TfLaneResult, accepted) == 28, "place of TfLaneResult.accepted");
TENSORFOLD_ASSERT(offsetof(TfLaneResult, drafts) == 32, "place of TfLaneResult.drafts");
TENSORFOLD_ASSERT(offsetof(TfLaneResult, draft_probabilities) == 40, "place of TfLaneResult.draft_probabilities");
TENSORFOLD_ASSERT(offsetof(TfLaneResult, draft_count) == 48, "place of TfLaneResult.draft_count");
TENSORFOLD_ASSERT(offsetof(TfLaneResult, draft_kind) == 52, "place of TfLaneResult.draft_kind");
TENSORFOLD_ASSERT(offsetof(TfLaneResult, logprobs) == 56, "place of TfLaneResult.logprobs");
TENSORFOLD_ASSERT(offsetof(TfLaneResult, logprob_count) == 64, "place of TfLaneResult.logprob_count");
TENSORFOLD_ASSERT(sizeof(TfRoundResult) == 64, "size of TfRoundResult");
TENSORFOLD_ASSERT(offsetof(TfRoundResult, struct_size) == 0, "place of TfRoundResult.struct_size");
TENSORFOLD_ASSERT(offsetof(TfRoundResult, reserved) == 4, "place of TfRoundResult.reserved");
TENSORFOLD_ASSERT(offsetof(TfRoundResult, lanes) == 8, "place of TfRoundResult.lanes");
TENSORFOLD_ASSERT(offsetof(TfRoundResult, lane_count) == 16, "place of TfRoundResult.lane_count");
TENSORFOLD_ASSERT(offsetof(TfRoundResult, forward_nanoseconds) == 24, "place of TfRoundResult.forward_nanoseconds");
TENSORFOLD_ASSERT(offsetof(TfRoundResult, sample_nanoseconds) == 32, "place of TfRoundResult.sample_nanoseconds");
TENSORFOLD_ASSERT(offsetof(TfRoundResult, draft_nanoseconds) == 40, "place of TfRoundResult.draft_nanoseconds");
TENSORFOLD_ASSERT(offsetof(TfRoundResult, degraded) == 48, "place of TfRoundResult.degraded");
#endif

#endif // TENSORFOLD_PLUGIN_H
