// A whole tensorfold plugin in C, written from the header alone: one device and one engine.
//
// Its model is a counting one: whatever token stands last, the next one of the vocabulary follows it
// with probability 1. So it needs no weights and every way of drawing gives the same token, but it keeps
// the whole contract: positions are checked, drafts are verified and rolled back, states can be kept and
// copied, long work can be cancelled, and every failure says what was wanted, what was found and what to do.
//
// `manifest.inc` holds the bytes of the manifest, as made by `xxd -i < tensorfold_plugin.toml`.

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorfold_plugin.h"

TENSORFOLD_MANIFEST const unsigned char TENSORFOLD_PLUGIN_MANIFEST[] = {
#include "manifest.inc"
};

// Text

#define TEXT(literal) ((TfStr){(const uint8_t *)(literal), sizeof(literal) - 1})

static int text_is(TfStr text, const char *wanted) {
    return text.length == strlen(wanted) && (text.length == 0 || memcmp(text.data, wanted, text.length) == 0);
}

// Precision and pointer for a "%.*s" that must not run on for ever.
static int shown(TfStr text) { return text.length > 200 ? 200 : (int)text.length; }
static const char *letters(TfStr text) { return text.data ? (const char *)text.data : ""; }

// Errors: a text on the heap that the host hands back to `release_error`.

__attribute__((format(printf, 3, 4)))
static int32_t fail(TfError *error, int32_t status, const char *format, ...) {
    if (!error || error->struct_size < sizeof *error) return status;
    enum { ROOM = 512 };
    error->status = status;
    error->details = NULL;
    error->detail_count = 0;
    error->owner = malloc(ROOM);
    if (!error->owner) {
        error->message = TEXT("out of memory");
        return status;
    }
    va_list values;
    va_start(values, format);
    int length = vsnprintf(error->owner, ROOM, format, values);
    va_end(values);
    if (length < 0) length = 0;
    if (length >= ROOM) length = ROOM - 1;
    error->message = (TfStr){error->owner, (uint64_t)length};
    return status;
}

static void release_error(TfError *error) {
    if (!error || error->struct_size < sizeof *error) return;
    free(error->owner);
    *error = (TfError){.struct_size = error->struct_size};
}

// A struct that the host passes begins with its size: an older host may know less of it than we need.
#define CHECK_SIZE(pointer, error)                                                                             \
    do {                                                                                                       \
        if (!(pointer) || (pointer)->struct_size < sizeof *(pointer))                                          \
            return fail((error), TF_STATUS_INVALID_ARGUMENT, #pointer " has %u bytes, this plugin needs %zu", \
                        (pointer) ? (unsigned)(pointer)->struct_size : 0u, sizeof *(pointer));                 \
    } while (0)

// State. One lock for everything, since `[any]` functions may come from any thread; it is never held while
// the host is called.

// What a lane or a snapshot holds: a counter keeps nothing of a text but its length.
struct held {
    struct held *next;
    uint64_t handle;
    uint64_t position;
};

struct engine {
    struct engine *next;
    uint64_t handle;
    uint64_t context;
    uint32_t vocabulary;
    uint32_t most_lanes, lane_count;
    struct held *lanes, *snapshots;
    TfEngineStats stats;
};

static struct {
    pthread_mutex_t lock;
    int started;
    const TfHostV1 *host;
    uint32_t step;
    uint64_t next_handle; // never 0 and never used again
    uint64_t device;      // 0: closed
    struct engine *engines;
} plugin = {.lock = PTHREAD_MUTEX_INITIALIZER, .step = 1, .next_handle = 1};

static void lock(void) { pthread_mutex_lock(&plugin.lock); }

// Ends a call: `return done(status)`.
static int32_t done(int32_t status) {
    pthread_mutex_unlock(&plugin.lock);
    return status;
}

static struct engine *find_engine(uint64_t handle) {
    struct engine *engine = plugin.engines;
    while (engine && engine->handle != handle) engine = engine->next;
    return engine;
}

static struct held *find_held(struct held *list, uint64_t handle) {
    while (list && list->handle != handle) list = list->next;
    return list;
}

// Adds to a list under a new handle.
static struct held *keep(struct held **list, uint64_t position) {
    struct held *held = malloc(sizeof *held);
    if (!held) return NULL;
    *held = (struct held){.next = *list, .handle = plugin.next_handle++, .position = position};
    *list = held;
    return held;
}

static int forget(struct held **list, uint64_t handle) {
    for (; *list; list = &(*list)->next) {
        if ((*list)->handle != handle) continue;
        struct held *gone = *list;
        *list = gone->next;
        free(gone);
        return 1;
    }
    return 0;
}

static void free_engine(struct engine **place) {
    struct engine *engine = *place;
    *place = engine->next;
    while (engine->lanes) forget(&engine->lanes, engine->lanes->handle);
    while (engine->snapshots) forget(&engine->snapshots, engine->snapshots->handle);
    free(engine);
}

// Begins a call on an engine.
#define ENTER(engine, handle, error)                                                                   \
    lock();                                                                                            \
    struct engine *engine = find_engine(handle);                                                       \
    if (!engine)                                                                                       \
    return done(fail((error), TF_STATUS_NOT_FOUND, "there is no engine %llu", (unsigned long long)(handle)))

#define FIND_HELD(name, list, handle, what, error)                                                     \
    struct held *name = find_held(list, handle);                                                       \
    if (!name)                                                                                         \
    return done(fail((error), TF_STATUS_NOT_FOUND, "there is no " what " %llu", (unsigned long long)(handle)))

// tensorfold.backend/1

static void say(const TfHostV1 *host, uint32_t level, TfStr message) {
    TfStr target = TEXT("start");
    if (!host->log_enabled(host->context, level, target)) return;
    TfLogRecord record = {.struct_size = sizeof record, .level = level, .target = target, .message = message};
    host->log(host->context, &record);
}

static int32_t init(const TfInit *init, TfError *error) {
    CHECK_SIZE(init, error);
    const TfHostV1 *host = init->host;
    CHECK_SIZE(host, error);
    long step = 1;
    for (uint64_t i = 0; i < init->configuration_count; i++) {
        const TfConfigurationEntry *entry = &init->configuration[i];
        if (text_is(entry->key, "step")) {
            char digits[8] = {0};
            if (entry->value.length < sizeof digits) memcpy(digits, letters(entry->value), entry->value.length);
            step = strtol(digits, NULL, 10);
            if (step < 1 || step > 1000)
                return fail(error, TF_STATUS_INVALID_ARGUMENT, "the option step: wanted 1 to 1000, found %.*s",
                            shown(entry->value), letters(entry->value));
        } else if (entry->required) {
            return fail(error, TF_STATUS_UNSUPPORTED, "the option %.*s is not known to this plugin; known: step",
                        shown(entry->key), letters(entry->key));
        }
    }
    lock();
    if (plugin.started) return done(fail(error, TF_STATUS_BUSY, "init was called twice without shutdown"));
    plugin.started = 1;
    plugin.host = host;
    plugin.step = (uint32_t)step;
    done(TF_STATUS_OK);
    say(host, TF_LOG_INFO, TEXT("ready to count"));
    return TF_STATUS_OK;
}

static const TfDeviceInfo the_device = {
    .struct_size = sizeof(TfDeviceInfo),
    .memory = TF_DEVICE_MEMORY_UNIFIED,
    .identity = {.struct_size = sizeof(TfDeviceIdentity),
                 .kind = TF_DEVICE_CPU,
                 .name = {(const uint8_t *)"ten fingers", 11}},
    .arch = {(const uint8_t *)"any", 3},
};

static int32_t list_devices(TfDeviceInfo *devices, uint64_t capacity, uint64_t *count, TfError *error) {
    if (!count || (!devices && capacity > 0))
        return fail(error, TF_STATUS_INVALID_ARGUMENT, "no room for the list of devices");
    if (capacity > 0) devices[0] = the_device;
    *count = 1;
    return TF_STATUS_OK;
}

static int is_the_device(const TfDeviceIdentity *identity) {
    return identity->kind == TF_DEVICE_CPU && identity->index == 0;
}

static int32_t fit_device(const TfDeviceIdentity *identity, TfDeviceFit *fit, TfError *error) {
    CHECK_SIZE(identity, error);
    CHECK_SIZE(fit, error);
    int fits = is_the_device(identity);
    fit->reasons = fits ? 0 : TF_UNFIT_DEVICE;
    fit->text = fits ? (TfStr){NULL, 0} : TEXT("only the first CPU counts");
    return TF_STATUS_OK;
}

static int32_t open_device(const TfDeviceIdentity *identity, uint64_t *device, TfError *error) {
    CHECK_SIZE(identity, error);
    if (!device) return fail(error, TF_STATUS_INVALID_ARGUMENT, "the pointer for the device is null");
    if (!is_the_device(identity))
        return fail(error, TF_STATUS_NOT_FOUND, "there is no device %u; wanted the first CPU", identity->index);
    lock();
    if (plugin.device) return done(fail(error, TF_STATUS_BUSY, "the device is open already"));
    plugin.device = *device = plugin.next_handle++;
    return done(TF_STATUS_OK);
}

static int32_t close_device(uint64_t device, TfError *error) {
    lock();
    if (!device || device != plugin.device)
        return done(fail(error, TF_STATUS_NOT_FOUND, "there is no device %llu", (unsigned long long)device));
    if (plugin.engines) return done(fail(error, TF_STATUS_BUSY, "engines are still open on this device"));
    plugin.device = 0;
    return done(TF_STATUS_OK);
}

static void set_log_level(uint32_t level) { (void)level; } // the host filters what it is told

static int32_t shut_down(TfError *error) {
    (void)error;
    lock();
    while (plugin.engines) free_engine(&plugin.engines);
    plugin.device = 0;
    plugin.started = 0;
    return done(TF_STATUS_OK);
}

static const TfBackendV1 backend = {
    .struct_size = sizeof(TfBackendV1),
    .init = init,
    .list_devices = list_devices,
    .fit_device = fit_device,
    .open_device = open_device,
    .close_device = close_device,
    .set_log_level = set_log_level,
    .shutdown = shut_down,
    .release_error = release_error,
};

// tensorfold.engine/1: the model's facts come as JSON. Two of them matter, both at the top level.

// The end of the JSON value at `at`, which is well-formed: at the next comma or bracket of its own depth.
static const char *json_end(const char *at, const char *end) {
    for (int depth = 0; at < end; at++) {
        if (*at == '"') {
            for (at++; at < end && *at != '"'; at++)
                if (*at == '\\') at++;
        } else if (*at == '{' || *at == '[') {
            depth++;
        } else if (depth == 0 && (*at == ',' || *at == '}' || *at == ']')) {
            break;
        } else if (*at == '}' || *at == ']') {
            depth--;
        }
    }
    return at < end ? at : end;
}

// The value of a key of the outermost object, with the quotes of a text; empty when it is not there.
static TfStr json_value(TfStr document, const char *key) {
    const char *at = letters(document), *end = at + document.length;
    size_t length = strlen(key);
    while (at < end && *at != '{') at++;
    while (at < end && *at != '}') {
        at++; // the bracket or a comma
        while (at < end && *at != '"' && *at != '}') at++;
        int found = (size_t)(end - at) > length + 2 && memcmp(at + 1, key, length) == 0 && at[length + 1] == '"';
        const char *colon = at;
        if (at < end && *at == '"') // over the key, in which a colon may stand
            for (colon++; colon < end && *colon != '"'; colon++)
                if (*colon == '\\') colon++;
        while (colon < end && *colon != ':') colon++;
        const char *value = colon < end ? colon + 1 : end;
        while (value < end && (*value == ' ' || *value == '\n')) value++;
        at = json_end(value, end);
        if (found) return (TfStr){(const uint8_t *)value, (uint64_t)(at - value)};
    }
    return (TfStr){NULL, 0};
}

static uint32_t json_number(TfStr document, const char *key) {
    TfStr value = json_value(document, key);
    uint64_t number = 0;
    for (uint64_t i = 0; i < value.length && value.data[i] >= '0' && value.data[i] <= '9' && number < 1u << 28; i++)
        number = 10 * number + (value.data[i] - '0');
    return (uint32_t)number;
}

// What both `plan` and `open_engine` refuse.
static int32_t check_model(uint64_t device, const TfModel *model, const TfEngineOptions *options, TfError *error) {
    CHECK_SIZE(model, error);
    CHECK_SIZE(options, error);
    if (!device || device != plugin.device)
        return fail(error, TF_STATUS_NOT_FOUND, "there is no device %llu", (unsigned long long)device);
    uint32_t version = json_number(model->spec, "version");
    if (version != 1)
        return fail(error, TF_STATUS_UNSUPPORTED, "the model's facts have version %u, wanted 1", version);
    TfStr family = json_value(model->spec, "family");
    if (!text_is(family, "\"qwen3_5\""))
        return fail(error, TF_STATUS_UNSUPPORTED, "wanted a model of the family qwen3_5, found %.*s", shown(family),
                    letters(family));
    if (json_number(model->spec, "selectable_vocabulary") < 2)
        return fail(error, TF_STATUS_INVALID_ARGUMENT, "the model has too few tokens to count with");
    if (options->world != 1) return fail(error, TF_STATUS_UNSUPPORTED, "wanted one rank, found %u", options->world);
    if (options->lanes < 1 || options->context < 1)
        return fail(error, TF_STATUS_INVALID_ARGUMENT, "no lane or no context was asked for");
    if (options->kv_dtype.length && !text_is(options->kv_dtype, "bf16"))
        return fail(error, TF_STATUS_UNSUPPORTED, "the cache type %.*s is not known; known: bf16",
                    shown(options->kv_dtype), letters(options->kv_dtype));
    return TF_STATUS_OK;
}

enum { MOST_LANES = 8 };

static uint32_t lanes_for(const TfEngineOptions *options) {
    return options->lanes < MOST_LANES ? options->lanes : MOST_LANES;
}

static int32_t plan(uint64_t device, const TfModel *model, const TfEngineOptions *options, TfMemoryPlan *plan,
                    TfError *error) {
    CHECK_SIZE(plan, error);
    lock();
    int32_t status = check_model(device, model, options, error);
    if (status) return done(status);
    uint64_t mapped = 0;
    for (uint64_t i = 0; i < model->tensor_count; i++) mapped += model->tensors[i].bytes;
    *plan = (TfMemoryPlan){
        .struct_size = sizeof *plan,
        .lanes = lanes_for(options),
        .mapped_bytes = mapped,
        .lane_bytes = sizeof(struct held),
        .scratch_bytes = sizeof(struct engine),
        .snapshot_bytes = sizeof(struct held),
        .available_bytes = TF_UNKNOWN,
    };
    return done(TF_STATUS_OK);
}

static int32_t open_engine(uint64_t device, const TfModel *model, const TfEngineOptions *options,
                           const TfProgress *progress, uint64_t *handle, TfError *error) {
    if (!handle) return fail(error, TF_STATUS_INVALID_ARGUMENT, "the pointer for the engine is null");
    if (progress && progress->struct_size >= sizeof *progress && progress->report &&
        progress->report(progress->context, 1, 1, TEXT("learning to count")))
        return fail(error, TF_STATUS_CANCELLED, "loading was cancelled");
    lock();
    int32_t status = check_model(device, model, options, error);
    if (status) return done(status);
    struct engine *engine = malloc(sizeof *engine);
    if (!engine) return done(fail(error, TF_STATUS_OUT_OF_MEMORY, "no memory for an engine"));
    *engine = (struct engine){
        .next = plugin.engines,
        .handle = plugin.next_handle++,
        .context = options->context,
        .vocabulary = json_number(model->spec, "selectable_vocabulary"),
        .most_lanes = lanes_for(options),
        .stats = {.struct_size = sizeof(TfEngineStats)},
    };
    plugin.engines = engine;
    *handle = engine->handle;
    return done(TF_STATUS_OK);
}

enum { OUTPUT_ROWS = 16 };

static int32_t info(uint64_t handle, TfEngineInfo *info, TfError *error) {
    CHECK_SIZE(info, error);
    ENTER(engine, handle, error);
    info->lanes = engine->most_lanes;
    info->context = engine->context;
    info->prefill_rows = 256;
    info->output_rows = OUTPUT_ROWS;
    info->description = TEXT("counts on its fingers");
    return done(TF_STATUS_OK);
}

static int32_t lane_open(uint64_t handle, uint64_t *lane, TfError *error) {
    if (!lane) return fail(error, TF_STATUS_INVALID_ARGUMENT, "the pointer for the lane is null");
    ENTER(engine, handle, error);
    if (engine->lane_count == engine->most_lanes)
        return done(fail(error, TF_STATUS_BUSY, "all %u lanes are open", engine->most_lanes));
    struct held *opened = keep(&engine->lanes, 0);
    if (!opened) return done(fail(error, TF_STATUS_OUT_OF_MEMORY, "no memory for a lane"));
    engine->lane_count++;
    *lane = opened->handle;
    return done(TF_STATUS_OK);
}

static int32_t lane_close(uint64_t handle, uint64_t lane, TfError *error) {
    ENTER(engine, handle, error);
    if (!forget(&engine->lanes, lane))
        return done(fail(error, TF_STATUS_NOT_FOUND, "there is no lane %llu", (unsigned long long)lane));
    engine->lane_count--;
    return done(TF_STATUS_OK);
}

static uint32_t successor(const struct engine *engine, uint32_t token) {
    return (uint32_t)(((uint64_t)token + plugin.step) % engine->vocabulary);
}

// Everything that can be wrong is found before any lane changes, so that a refused round leaves all as it was.
static int32_t check_lane(struct engine *engine, const TfLaneInput *input, const TfLaneResult *result,
                          TfError *error) {
    CHECK_SIZE(input, error);
    CHECK_SIZE(result, error);
    const struct held *lane = find_held(engine->lanes, input->lane);
    if (!lane) return fail(error, TF_STATUS_NOT_FOUND, "there is no lane %llu", (unsigned long long)input->lane);
    if (lane->position != input->position)
        return fail(error, TF_STATUS_INVALID_ARGUMENT, "the lane holds %llu tokens, the round says %llu",
                    (unsigned long long)lane->position, (unsigned long long)input->position);
    if (!input->tokens || input->token_count < 1 || input->draft_count >= input->token_count ||
        input->output_count > input->token_count || input->output_count > OUTPUT_ROWS ||
        (input->draft_count > 0 && input->output_count != input->draft_count + 1))
        return fail(error, TF_STATUS_INVALID_ARGUMENT, "%u tokens with %u drafts and %u draws make no round",
                    input->token_count, input->draft_count, input->output_count);
    if (input->token_count > engine->context - lane->position)
        return fail(error, TF_STATUS_INVALID_ARGUMENT, "the context of %llu tokens is full",
                    (unsigned long long)engine->context);
    for (uint32_t i = 0; i < input->token_count; i++)
        if (input->tokens[i] >= engine->vocabulary)
            return fail(error, TF_STATUS_INVALID_ARGUMENT, "token %u is outside the vocabulary of %u",
                        input->tokens[i], engine->vocabulary);
    if (input->allowed || input->logprobs_wanted)
        return fail(error, TF_STATUS_UNSUPPORTED, "masks and log probabilities are not offered");
    return TF_STATUS_OK;
}

static void run_lane(struct engine *engine, const TfLaneInput *input, int cancelled, TfLaneResult *result) {
    struct held *lane = find_held(engine->lanes, input->lane);
    if (cancelled) {
        result->status = TF_STATUS_CANCELLED;
        result->position = lane->position;
        return;
    }
    uint32_t certain = input->token_count - input->draft_count;
    uint32_t accepted = 0;
    while (accepted < input->draft_count &&
           input->tokens[certain + accepted] == successor(engine, input->tokens[certain + accepted - 1]))
        accepted++;
    // Rows whose draws are answered: all that were wanted, or those up to the first that was no draft.
    uint32_t draws = input->draft_count > 0 ? accepted + 1 : input->output_count;
    uint32_t first = input->token_count - input->output_count;
    for (uint32_t i = 0; i < draws; i++) result->tokens[i] = successor(engine, input->tokens[first + i]);
    lane->position += certain + accepted;
    result->status = TF_STATUS_OK;
    result->position = lane->position;
    result->token_count = draws;
    result->accepted = accepted;
    result->draft_count = 0; // there is no drafter
    engine->stats.rows += input->token_count;
    engine->stats.drawn += draws;
    engine->stats.verified += input->draft_count;
    engine->stats.accepted += accepted;
}

static int32_t run_round(uint64_t handle, const TfRound *round, TfRoundResult *result, TfError *error) {
    CHECK_SIZE(round, error);
    CHECK_SIZE(result, error);
    ENTER(engine, handle, error);
    if (round->lane_count != result->lane_count || (round->lane_count && (!round->lanes || !result->lanes)))
        return done(fail(error, TF_STATUS_INVALID_ARGUMENT, "the round has %llu lanes and room for %llu",
                         (unsigned long long)round->lane_count, (unsigned long long)result->lane_count));
    for (uint64_t i = 0; i < round->lane_count; i++) {
        int32_t status = check_lane(engine, &round->lanes[i], &result->lanes[i], error);
        if (status) return done(status);
    }
    for (uint64_t i = 0; i < round->lane_count; i++) {
        const TfHostV1 *host = plugin.host;
        done(TF_STATUS_OK); // calls on one engine do not overlap, so it is still there afterwards
        uint64_t token = round->lanes[i].cancel;
        int cancelled = token && host->cancel_poll(host->context, token);
        lock();
        run_lane(engine, &round->lanes[i], cancelled, &result->lanes[i]);
    }
    result->forward_nanoseconds = result->sample_nanoseconds = result->draft_nanoseconds = TF_UNKNOWN;
    result->degraded = (TfStr){NULL, 0};
    engine->stats.rounds++;
    return done(TF_STATUS_OK);
}

static int32_t snapshot(uint64_t handle, uint64_t lane, TfSnapshot *snapshot, TfError *error) {
    CHECK_SIZE(snapshot, error);
    ENTER(engine, handle, error);
    FIND_HELD(source, engine->lanes, lane, "lane", error);
    const struct held *kept = keep(&engine->snapshots, source->position);
    if (!kept) return done(fail(error, TF_STATUS_OUT_OF_MEMORY, "no memory for a snapshot"));
    snapshot->snapshot = kept->handle;
    snapshot->position = kept->position;
    snapshot->bytes = sizeof *kept;
    return done(TF_STATUS_OK);
}

static int32_t restore(uint64_t handle, uint64_t lane, uint64_t snapshot, TfError *error) {
    ENTER(engine, handle, error);
    FIND_HELD(target, engine->lanes, lane, "lane", error);
    FIND_HELD(kept, engine->snapshots, snapshot, "snapshot", error);
    target->position = kept->position;
    return done(TF_STATUS_OK);
}

static int32_t fork_lane(uint64_t handle, uint64_t lane, uint64_t *fork, TfError *error) {
    if (!fork) return fail(error, TF_STATUS_INVALID_ARGUMENT, "the pointer for the lane is null");
    ENTER(engine, handle, error);
    FIND_HELD(source, engine->lanes, lane, "lane", error);
    if (engine->lane_count == engine->most_lanes)
        return done(fail(error, TF_STATUS_BUSY, "all %u lanes are open", engine->most_lanes));
    const struct held *opened = keep(&engine->lanes, source->position);
    if (!opened) return done(fail(error, TF_STATUS_OUT_OF_MEMORY, "no memory for a lane"));
    engine->lane_count++;
    *fork = opened->handle;
    return done(TF_STATUS_OK);
}

static int32_t drop_snapshot(uint64_t handle, uint64_t snapshot, TfError *error) {
    ENTER(engine, handle, error);
    if (!forget(&engine->snapshots, snapshot))
        return done(fail(error, TF_STATUS_NOT_FOUND, "there is no snapshot %llu", (unsigned long long)snapshot));
    return done(TF_STATUS_OK);
}

static int32_t sleep_engine(uint64_t handle, uint32_t level, TfError *error) {
    (void)level;
    ENTER(engine, handle, error);
    return done(fail(error, TF_STATUS_UNSUPPORTED, "counting takes no memory that could be given back"));
}

static int32_t wake_engine(uint64_t handle, const TfProgress *progress, TfError *error) {
    (void)progress;
    return sleep_engine(handle, 0, error);
}

static int32_t memory(uint64_t handle, TfEngineMemory *memory, TfError *error) {
    CHECK_SIZE(memory, error);
    ENTER(engine, handle, error);
    memory->lane_bytes = engine->lane_count * sizeof(struct held);
    memory->snapshot_bytes = 0;
    for (const struct held *kept = engine->snapshots; kept; kept = kept->next)
        memory->snapshot_bytes += sizeof *kept;
    memory->used_bytes = sizeof *engine + memory->lane_bytes + memory->snapshot_bytes;
    memory->peak_bytes = TF_UNKNOWN;
    return done(TF_STATUS_OK);
}

static int32_t stats(uint64_t handle, TfEngineStats *stats, TfError *error) {
    CHECK_SIZE(stats, error);
    ENTER(engine, handle, error);
    *stats = engine->stats;
    return done(TF_STATUS_OK);
}

static int32_t close_engine(uint64_t handle, TfError *error) {
    lock();
    for (struct engine **place = &plugin.engines; *place; place = &(*place)->next) {
        if ((*place)->handle != handle) continue;
        free_engine(place);
        return done(TF_STATUS_OK);
    }
    return done(fail(error, TF_STATUS_NOT_FOUND, "there is no engine %llu", (unsigned long long)handle));
}

static const TfEngineV1 engine_table = {
    .struct_size = sizeof(TfEngineV1),
    .plan = plan,
    .open_engine = open_engine,
    .info = info,
    .lane_open = lane_open,
    .lane_close = lane_close,
    .round = run_round,
    .snapshot = snapshot,
    .restore = restore,
    .fork = fork_lane,
    .drop_snapshot = drop_snapshot,
    .sleep = sleep_engine,
    .wake = wake_engine,
    .memory = memory,
    .stats = stats,
    .close = close_engine,
};

// The door

static const void *get_interface(const uint8_t *id, uint64_t length) {
    TfStr wanted = {id, length};
    if (text_is(wanted, "tensorfold.backend/1")) return &backend;
    if (text_is(wanted, "tensorfold.engine/1")) return &engine_table;
    return NULL;
}

TENSORFOLD_EXPORT const TfDescriptor tensorfold_plugin_v1 = {
    .magic = TF_PLUGIN_MAGIC,
    .struct_size = sizeof(TfDescriptor),
    .abi_major = TF_ABI_MAJOR,
    .abi_minor = TF_ABI_MINOR,
    .min_host_minor = TF_ABI_MINOR,
    .manifest = TENSORFOLD_PLUGIN_MANIFEST,
    .manifest_length = sizeof TENSORFOLD_PLUGIN_MANIFEST,
    .get_interface = get_interface,
    .version = {(const uint8_t *)"1.2.3", 5},
    .build_id = {(const uint8_t *)"successor-1", 11},
};
