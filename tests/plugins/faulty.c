// Plugins with one fault each: the sound plugin of successor.c with a part replaced. Each switch below is one
// fault; without any, what is built is sound, which shows that it is the fault that a test sees.

#define _GNU_SOURCE
#include <unistd.h>

#include "tensorfold_plugin.h"

// The sound plugin's parts, with its descriptor for this file only.
#undef TENSORFOLD_EXPORT
#define TENSORFOLD_EXPORT static __attribute__((unused))
#define tensorfold_plugin_v1 sound_descriptor
#include "successor.c"
#undef tensorfold_plugin_v1

// As a fault in the code would be; raise() would be undone by a handler that expects one.
__attribute__((unused)) static void crash(void) {
    static volatile char *volatile nowhere;
    *nowhere = 1;
}

// A constructor that leaves a mark: proves whether code of the plugin ran.
#ifdef MARKER
#include <fcntl.h>
__attribute__((constructor)) static void leave_a_mark(void) {
    int file = open(MARKER, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0) close(file);
}
#endif

#ifdef CONSTRUCTOR_CRASHES
__attribute__((constructor)) static void crash_at_once(void) { crash(); }
#endif

#ifdef UNDEFINED_SYMBOL
extern int tensorfold_tests_defined_nowhere(void);
__attribute__((used)) static int call_it(void) { return tensorfold_tests_defined_nowhere(); }
#endif

// Parts of `tensorfold.backend/1`

static inline int32_t faulty_init(const TfInit *arguments, TfError *error) {
#if defined(INIT_STATUS)
    (void)arguments;
    return fail(error, INIT_STATUS, "asked to fail\nin \x1b[31mtwo\x1b[0m lines");
#elif defined(INIT_STATUS_IN_SILENCE)
    (void)arguments, (void)error;
    return INIT_STATUS_IN_SILENCE;
#elif defined(INIT_ERROR_IS_GARBAGE)
    (void)arguments;
    static const uint8_t not_text[] = {0xff, 0xfe, 0x00, 0x80, '!'};
    error->status = 77;
    error->message = (TfStr){not_text, sizeof not_text};
    return TF_STATUS_INTERNAL;
#elif defined(INIT_CRASHES)
    (void)arguments, (void)error;
    crash();
    return TF_STATUS_INTERNAL;
#elif defined(INIT_ABORTS)
    (void)arguments, (void)error;
    abort();
#elif defined(INIT_EXITS)
    (void)arguments, (void)error;
    exit(INIT_EXITS);
#elif defined(INIT_HANGS)
    while (pause()) {} // pause never returns 0
    return init(arguments, error);
#elif defined(INIT_WRITES_TO_STDOUT)
    static const char noise[] = "{\"this\": \"is not for here\"}\n";
    if (write(1, noise, sizeof noise - 1) < 0) return TF_STATUS_INTERNAL;
    return init(arguments, error);
#elif defined(THREAD_LEFT_RUNNING)
    static pthread_t thread;
    extern void *sleep_for_ever(void *);
    if (pthread_create(&thread, NULL, sleep_for_ever, NULL)) return TF_STATUS_INTERNAL;
    return init(arguments, error);
#else
    return init(arguments, error);
#endif
}

#ifdef THREAD_LEFT_RUNNING
__attribute__((visibility("hidden"))) void *sleep_for_ever(void *nothing) {
    while (pause()) {}
    return nothing;
}
#endif

static inline int32_t faulty_list_devices(TfDeviceInfo *devices, uint64_t capacity, uint64_t *count,
                                          TfError *error) {
#if defined(NO_DEVICES)
    (void)devices, (void)capacity, (void)error;
    *count = 0;
    return TF_STATUS_OK;
#elif defined(DEVICES_FAIL)
    (void)devices, (void)capacity, (void)count;
    return fail(error, TF_STATUS_DEVICE_LOST, "the fingers fell off");
#elif defined(COUNT_OF_DEVICES_IS_A_LIE)
    int32_t status = list_devices(devices, capacity, count, error);
    *count = COUNT_OF_DEVICES_IS_A_LIE;
    return status;
#elif defined(DEVICES_ARE_GARBAGE)
    // Texts that are none and that paint on terminals, and kinds that do not exist: all of it readable memory.
    static uint8_t letters_of_nothing[256];
    (void)error;
    for (size_t i = 0; i < sizeof letters_of_nothing; i++) letters_of_nothing[i] = "\x1b[2J\n\xff"[i % 6];
    TfStr text = {letters_of_nothing, sizeof letters_of_nothing};
    for (uint64_t i = 0; i < capacity && i < 3; i++) {
        devices[i] = (TfDeviceInfo){
            .struct_size = DEVICES_ARE_GARBAGE,
            .memory = 99,
            .identity = {.struct_size = sizeof(TfDeviceIdentity), .kind = 4711, .pci_address = text, .uuid = text,
                         .name = text, .index = 0xffffffff},
            .arch = text,
            .memory_bytes = UINT64_MAX,
            .free_memory_bytes = UINT64_MAX,
            .driver = text,
        };
    }
    *count = 3;
    return TF_STATUS_OK;
#else
    return list_devices(devices, capacity, count, error);
#endif
}

static inline int32_t faulty_shutdown(TfError *error) {
#if defined(SHUTDOWN_FAILS)
    return fail(error, TF_STATUS_INTERNAL, "would rather stay");
#elif defined(SHUTDOWN_HANGS)
    while (pause()) {}
    return shut_down(error);
#elif defined(SHUTDOWN_CRASHES)
    (void)error;
    crash();
    return TF_STATUS_OK;
#else
    return shut_down(error);
#endif
}

// Parts of `tensorfold.engine/1`

static inline int32_t faulty_open_engine(uint64_t device, const TfModel *model, const TfEngineOptions *options,
                                         const TfProgress *progress, uint64_t *handle, TfError *error) {
#if defined(REFUSES_WHAT_IT_DECLARES)
    (void)device, (void)model, (void)options, (void)progress, (void)handle;
    return fail(error, TF_STATUS_UNSUPPORTED, "the family qwen3_5 is too hard to count");
#elif defined(NO_MEMORY_FOR_THE_MODEL)
    (void)device, (void)model, (void)options, (void)progress, (void)handle;
    return fail(error, TF_STATUS_OUT_OF_MEMORY, "wanted 2 GiB, found 1 GiB");
#else
    return open_engine(device, model, options, progress, handle, error);
#endif
}

static inline int32_t faulty_round(uint64_t engine, const TfRound *round, TfRoundResult *result, TfError *error) {
#ifdef ROUND_HANGS
    say(plugin.host, TF_LOG_WARN, TEXT("the round hangs"));
    while (pause()) {}
#endif
    int32_t status = run_round(engine, round, result, error);
#if defined(ROUND_GIVES_TOO_MANY_TOKENS)
    for (uint64_t i = 0; i < result->lane_count; i++) result->lanes[i].token_count = 1u << 20;
#elif defined(ROUND_GIVES_NO_TOKEN)
    for (uint64_t i = 0; i < result->lane_count; i++) result->lanes[i].token_count = 0;
#elif defined(ROUND_LEAVES_THE_VOCABULARY)
    for (uint64_t i = 0; i < result->lane_count; i++)
        if (result->lanes[i].token_count > 0) result->lanes[i].tokens[0] = 0xffffffff;
#elif defined(ROUND_IS_ELSEWHERE)
    for (uint64_t i = 0; i < result->lane_count; i++) result->lanes[i].position += 7;
#elif defined(ROUND_ACCEPTS_WHAT_WAS_NOT_DRAFTED)
    for (uint64_t i = 0; i < result->lane_count; i++) result->lanes[i].accepted = 3;
#elif defined(ROUND_FAILS)
    if (status == TF_STATUS_OK) return fail(error, ROUND_FAILS, "lost count");
#endif
    return status;
}

// Tables of the size that the switch wants, all else as the sound plugin has it.

struct backend_and_more {
    TfBackendV1 table;
    void *more[8]; // what a plugin of a later contract has behind the part that this host knows
};

struct engine_and_more {
    TfEngineV1 table;
    void *more[8];
};

#ifndef BACKEND_SIZE
#define BACKEND_SIZE sizeof(TfBackendV1)
#endif
#ifndef ENGINE_SIZE
#define ENGINE_SIZE sizeof(TfEngineV1)
#endif

static const struct backend_and_more faulty_backend = {
    .table = {
        .struct_size = BACKEND_SIZE,
        .init = faulty_init,
        .list_devices = faulty_list_devices,
        .fit_device = fit_device,
        .open_device = open_device,
        .close_device = close_device,
        .set_log_level = set_log_level,
        .shutdown = faulty_shutdown,
#ifndef NO_RELEASE_ERROR
        .release_error = release_error,
#endif
    },
};

static const struct engine_and_more faulty_engine = {
    .table = {
        .struct_size = ENGINE_SIZE,
        .plan = plan,
        .open_engine = faulty_open_engine,
        .info = info,
        .lane_open = lane_open,
        .lane_close = lane_close,
#ifndef NO_ROUND
        .round = faulty_round,
#endif
        .snapshot = snapshot,
        .restore = restore,
        .fork = fork_lane,
        .drop_snapshot = drop_snapshot,
        .sleep = sleep_engine,
        .wake = wake_engine,
        .memory = memory,
        .stats = stats,
        .close = close_engine,
    },
};

#ifdef NO_BACKEND_TABLE
#define BACKEND_TABLE ((void)&faulty_backend, NULL)
#else
#define BACKEND_TABLE &faulty_backend
#endif
#ifdef NO_ENGINE_TABLE
#define ENGINE_TABLE ((void)&faulty_engine, NULL)
#else
#define ENGINE_TABLE &faulty_engine
#endif

static inline const void *faulty_get_interface(const uint8_t *id, uint64_t length) {
    TfStr wanted = {id, length};
    if (text_is(wanted, "tensorfold.backend/1")) return BACKEND_TABLE;
    if (text_is(wanted, "tensorfold.engine/1")) return ENGINE_TABLE;
    return NULL;
}

// The descriptor

#ifndef MAGIC
#define MAGIC TF_PLUGIN_MAGIC
#endif
#ifndef DESCRIPTOR_SIZE
#define DESCRIPTOR_SIZE sizeof(TfDescriptor)
#endif
#ifndef DESCRIPTOR_MAJOR
#define DESCRIPTOR_MAJOR TF_ABI_MAJOR
#endif
#ifndef DESCRIPTOR_MINOR
#define DESCRIPTOR_MINOR TF_ABI_MINOR
#endif
#ifndef DESCRIPTOR_MIN_HOST_MINOR
#define DESCRIPTOR_MIN_HOST_MINOR DESCRIPTOR_MINOR
#endif
#ifndef DESCRIPTOR_VERSION
#define DESCRIPTOR_VERSION "1.2.3"
#endif

#ifdef OTHER_MANIFEST_IN_DESCRIPTOR
static const unsigned char other_manifest[] = "manifest = 1\n";
#define DESCRIPTOR_MANIFEST other_manifest
#define DESCRIPTOR_MANIFEST_LENGTH sizeof other_manifest - 1
#elif defined(NO_MANIFEST_IN_DESCRIPTOR)
#define DESCRIPTOR_MANIFEST NULL
#define DESCRIPTOR_MANIFEST_LENGTH 0
#else
#define DESCRIPTOR_MANIFEST TENSORFOLD_PLUGIN_MANIFEST
#define DESCRIPTOR_MANIFEST_LENGTH sizeof TENSORFOLD_PLUGIN_MANIFEST
#endif

struct descriptor_and_more {
    TfDescriptor descriptor;
    void *more[8];
};

#ifndef NO_DESCRIPTOR
__attribute__((used, visibility("default")))
#else
__attribute__((used))
#endif
const struct descriptor_and_more faulty_descriptor __asm__("tensorfold_plugin_v1") = {
    .descriptor = {
        .magic = MAGIC,
        .struct_size = DESCRIPTOR_SIZE,
        .abi_major = DESCRIPTOR_MAJOR,
        .abi_minor = DESCRIPTOR_MINOR,
        .min_host_minor = DESCRIPTOR_MIN_HOST_MINOR,
        .manifest = DESCRIPTOR_MANIFEST,
        .manifest_length = DESCRIPTOR_MANIFEST_LENGTH,
#ifndef NO_LOOKUP
        .get_interface = faulty_get_interface,
#endif
        .version = {(const uint8_t *)DESCRIPTOR_VERSION, sizeof DESCRIPTOR_VERSION - 1},
        .build_id = {(const uint8_t *)"faulty", 6},
    },
};
