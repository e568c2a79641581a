/* A libmlx for tests. A C++ function without arguments is a C function with a
 * mangled name, so no C++ compiler is needed.
 *
 * FAKE_VERSION        what mlx::core::version() returns   (default "0.32.4")
 * FAKE_LACKS_VERSION  the function is not there
 */
#ifndef FAKE_VERSION
#define FAKE_VERSION "0.32.4"
#endif

#ifdef FAKE_LACKS_VERSION
int something_else(void) { return 0; }
#else
const char *_ZN3mlx4core7versionEv(void) { return FAKE_VERSION; }
#endif
