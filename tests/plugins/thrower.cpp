// A plugin in C++ whose own code throws. By the contract nothing may cross the border: each function of the
// tables is noexcept and turns what it catches into a status. With -DLETS_IT_PASS `init` lacks the catch: the
// C++ runtime then ends the process, which is why plugins are tried in a process of their own first.

#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "tensorfold_plugin.h"

extern "C" {
TENSORFOLD_MANIFEST const unsigned char TENSORFOLD_PLUGIN_MANIFEST[] = {
#include "manifest.inc"
};
}

namespace {

TfStr text(const char *letters) noexcept {
    return {reinterpret_cast<const uint8_t *>(letters), static_cast<uint64_t>(std::strlen(letters))};
}

// Runs a body that may throw. What it throws becomes a status and a message.
template <class Body> int32_t caught(TfError *error, Body body) noexcept {
    const char *message = "something that is no std::exception";
    std::string *owner = nullptr;
    try {
        body();
        return TF_STATUS_OK;
    } catch (const std::exception &thrown) {
        owner = new (std::nothrow) std::string(thrown.what());
        message = owner ? owner->c_str() : "out of memory";
    } catch (...) {
    }
    if (error) {
        error->status = TF_STATUS_PANICKED;
        error->message = text(message);
        error->owner = owner;
    }
    return TF_STATUS_PANICKED;
}

[[noreturn]] void refuse(const char *what) { throw std::runtime_error(std::string(what) + " threw"); }

int32_t init(const TfInit *, TfError *error) noexcept {
#ifdef LETS_IT_PASS
    (void)error;
    refuse("init");
#elif defined(THROWS_IN_INIT)
    return caught(error, [] { refuse("init"); });
#else
    (void)error;
    return TF_STATUS_OK;
#endif
}

int32_t list_devices(TfDeviceInfo *, uint64_t, uint64_t *, TfError *error) noexcept {
    return caught(error, [] { throw 42; });
}

int32_t fit_device(const TfDeviceIdentity *, TfDeviceFit *, TfError *error) noexcept {
    return caught(error, [] { refuse("fit_device"); });
}

int32_t open_device(const TfDeviceIdentity *, uint64_t *, TfError *error) noexcept {
    return caught(error, [] { refuse("open_device"); });
}

int32_t close_device(uint64_t, TfError *error) noexcept {
    return caught(error, [] { refuse("close_device"); });
}

void set_log_level(uint32_t) noexcept {}

int32_t shut_down(TfError *) noexcept { return TF_STATUS_OK; }

void release_error(TfError *error) noexcept {
    if (!error) return;
    delete static_cast<std::string *>(error->owner);
    *error = TfError{};
    error->struct_size = sizeof *error;
}

const TfBackendV1 backend = {
    sizeof(TfBackendV1), 0,         init,      list_devices, fit_device, open_device, close_device, set_log_level,
    shut_down,           release_error,
};

// Text that is there before any code runs.
template <size_t room> constexpr TfStr constant(const uint8_t (&letters)[room]) noexcept { return {letters, room}; }

constexpr uint8_t version[] = {'1', '.', '2', '.', '3'};
constexpr uint8_t build_id[] = {'t', 'h', 'r', 'o', 'w', 'e', 'r'};

const void *get_interface(const uint8_t *id, uint64_t length) noexcept {
    static const char wanted[] = "tensorfold.backend/1";
    return length == sizeof wanted - 1 && std::memcmp(id, wanted, length) == 0 ? &backend : nullptr;
}

} // namespace

extern "C" {
TENSORFOLD_EXPORT const TfDescriptor tensorfold_plugin_v1 = {
    TF_PLUGIN_MAGIC,
    sizeof(TfDescriptor),
    TF_ABI_MAJOR,
    TF_ABI_MINOR,
    TF_ABI_MINOR,
    0,
    0,
    TENSORFOLD_PLUGIN_MANIFEST,
    sizeof TENSORFOLD_PLUGIN_MANIFEST,
    get_interface,
    constant(version),
    constant(build_id),
};
}
