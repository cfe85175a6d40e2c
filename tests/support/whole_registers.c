/* LD_PRELOAD for linux.uml of Debian 12 (Linux 6.1), on processors with AMX.

It writes 2,696 bytes of extended registers into the processes of a guest. Linux refuses to write
fewer than the processor has, 11,008 bytes with AMX, and the first process of the guest dies. This
adds the registers that the process has. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef long (*ptrace_call)(enum __ptrace_request, pid_t, void *, void *);

static char all[65536];

long ptrace(enum __ptrace_request request, ...) {
    va_list given;
    va_start(given, request);
    pid_t process = va_arg(given, pid_t);
    void *kind = va_arg(given, void *), *data = va_arg(given, void *);
    va_end(given);
    ptrace_call call = (ptrace_call)dlsym(RTLD_NEXT, "ptrace");
    if (request != PTRACE_SETREGSET || (long)kind != NT_X86_XSTATE)
        return call(request, process, kind, data);
    struct iovec *own = data, whole = {all, sizeof all};
    if (call(PTRACE_GETREGSET, process, kind, &whole) < 0) return -1;
    if (own->iov_len >= whole.iov_len) return call(request, process, kind, data);
    memcpy(all, own->iov_base, own->iov_len);
    return call(request, process, kind, &whole);
}
