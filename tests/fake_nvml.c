/* A stand-in for libnvidia-ml.so.1: by default four RTX A6000, scripted line by line through a text file.
 *
 * The file is named by FAKE_NVML_STATE and read again at every call, so a test changes the machine by writing it.
 * DEV is a device index, or -1 for calls without a device; FUNCTION may be "*". Lines:
 *
 *   devices N                        how many cards (4)
 *   driver VERSION | cuda NUMBER     "550.54.14", 12040
 *   base DEV MIB                     resting memory (450)
 *   process DEV PID MIB FALL_S       listed while PID lives; its memory then falls over FALL_S seconds, -1: never
 *   ghost DEV PID MIB                listed for ever, whether or not PID exists; MIB -1: memory not told
 *   throttle DEV HEX                 clock event reasons
 *   xid SEQUENCE DEV CODE            an event; an event set delivers those numbered after its making
 *   mig DEV INSTANCES                card in MIG mode with so many instances, each a GPU instance of id 7 + number
 *   name DEV TEXT | uuid DEV TEXT
 *   error DEV FUNCTION CODE          this function fails
 *   hang DEV FUNCTION MS             this function takes so long first
 *
 * A library that lacks a function is built with -DFUNCTION=hidden_FUNCTION.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_DEVICES 16
#define MAX_INSTANCES 7
#define MAX_LINES 64
#define MIB 1048576ull
#define TOTAL_MIB 49140ull

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };

typedef struct { int index, mig; } device_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { device_t *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event_t;
typedef struct { unsigned version, sensor; int temperature; } temperature_t;
typedef struct { int last, watched[MAX_DEVICES]; } event_set_t;

typedef struct { int device, pid, ghost; long mib; double fall_s; } tenant_t;
typedef struct { int sequence, device, code; } xid_t;
typedef struct {
    int devices, cuda, tenants, xids;
    char driver[64];
    long base[MAX_DEVICES];
    unsigned long long throttle[MAX_DEVICES];
    int mig[MAX_DEVICES];
    char name[MAX_DEVICES][64], uuid[MAX_DEVICES][64];
    tenant_t tenant[MAX_LINES];
    xid_t xid[MAX_LINES];
} state_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int opened;
static device_t boards[MAX_DEVICES], instances[MAX_DEVICES][MAX_INSTANCES];
static struct { int pid; double at; } deaths[MAX_LINES];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int in_range(int device) { return device >= 0 && device < MAX_DEVICES; }

/* Reads the script; gives the error and the delay it asks for at this call. */
static int load(state_t *s, const char *function, int device, int *delay_ms) {
    char line[256], word[64], text[64];
    int d, n, code = SUCCESS;
    memset(s, 0, sizeof *s);
    s->devices = 4;
    s->cuda = 12040;
    strcpy(s->driver, "550.54.14");
    for (d = 0; d < MAX_DEVICES; d++) {
        s->base[d] = 450;
        s->mig[d] = -1;
        snprintf(s->name[d], sizeof s->name[d], "NVIDIA RTX A6000");
        snprintf(s->uuid[d], sizeof s->uuid[d], "GPU-a6000%03d-1111-2222-3333-44444444444%x", d, d);
    }
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return code;
    while (fgets(line, sizeof line, file)) {
        tenant_t t = {0};
        xid_t x;
        unsigned long long bits;
        long mib;
        if (sscanf(line, "devices %d", &n) == 1) s->devices = n;
        else if (sscanf(line, "cuda %d", &n) == 1) s->cuda = n;
        else if (sscanf(line, "driver %63s", text) == 1) strcpy(s->driver, text);
        else if (sscanf(line, "base %d %ld", &d, &mib) == 2 && in_range(d)) s->base[d] = mib;
        else if (sscanf(line, "throttle %d %llx", &d, &bits) == 2 && in_range(d)) s->throttle[d] = bits;
        else if (sscanf(line, "mig %d %d", &d, &n) == 2 && in_range(d)) s->mig[d] = n;
        else if (sscanf(line, "name %d %63[^\n]", &d, text) == 2 && in_range(d)) strcpy(s->name[d], text);
        else if (sscanf(line, "uuid %d %63s", &d, text) == 2 && in_range(d)) strcpy(s->uuid[d], text);
        else if (sscanf(line, "process %d %d %ld %lf", &t.device, &t.pid, &t.mib, &t.fall_s) == 4
                 && s->tenants < MAX_LINES) s->tenant[s->tenants++] = t;
        else if (sscanf(line, "ghost %d %d %ld", &t.device, &t.pid, &t.mib) == 3 && s->tenants < MAX_LINES) {
            t.ghost = 1;
            s->tenant[s->tenants++] = t;
        } else if (sscanf(line, "xid %d %d %d", &x.sequence, &x.device, &x.code) == 3 && s->xids < MAX_LINES)
            s->xid[s->xids++] = x;
        else if (sscanf(line, "error %d %63s %d", &d, word, &n) == 3) {
            if (d == device && (!strcmp(word, "*") || !strcmp(word, function))) code = n;
        } else if (sscanf(line, "hang %d %63s %d", &d, word, &n) == 3)
            if (d == device && (!strcmp(word, "*") || !strcmp(word, function))) *delay_ms = n;
    }
    fclose(file);
    return code;
}

static int enter(state_t *s, const char *function, int device) {
    int delay_ms = 0, code = load(s, function, device, &delay_ms);
    if (delay_ms) usleep(delay_ms * 1000);
    if (code) return code;
    if (!opened && strcmp(function, "nvmlInitWithFlags")) return UNINITIALIZED;
    return SUCCESS;
}

#define ENTER(device) \
    state_t s; \
    int code = enter(&s, __func__, device); \
    if (code) return code;

/* As ENTER, for calls that take a card's handle and refuse an instance's. */
#define ENTER_BOARD(d) \
    ENTER((d)->index) \
    if ((d)->mig >= 0) return NOT_SUPPORTED;

static int alive(const tenant_t *t) { return t->ghost || kill(t->pid, 0) == 0 || errno == EPERM; }

static double died_at(int pid) {
    double at = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_LINES; i++) {
        if (deaths[i].pid == 0) {
            deaths[i].pid = pid;
            deaths[i].at = now();
        }
        if (deaths[i].pid == pid) {
            at = deaths[i].at;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return at;
}

static double held_mib(const tenant_t *t) {
    if (t->mib < 0) return 0;
    if (alive(t) || t->fall_s < 0) return t->mib;
    double left = t->fall_s > 0 ? 1 - (now() - died_at(t->pid)) / t->fall_s : 0;
    return left > 0 ? t->mib * left : 0;
}

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER(-1)
    pthread_mutex_lock(&lock);
    opened++;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

EXPORT int nvmlShutdown(void) {
    ENTER(-1)
    pthread_mutex_lock(&lock);
    opened--;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* Not of NVML: how many times it is open, for the tests. */
EXPORT int fakeOpened(void) { return opened; }

EXPORT const char *nvmlErrorString(int code) {
    static __thread char text[32];
    snprintf(text, sizeof text, "fake error %d", code);
    return text;
}

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    ENTER(-1)
    snprintf(out, size, "%s", s.driver);
    return SUCCESS;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    ENTER(-1)
    *out = s.cuda;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *out) {
    ENTER(-1)
    *out = s.devices;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **out) {
    ENTER((int)index)
    if ((int)index >= s.devices || !in_range(index)) return INVALID_ARGUMENT;
    boards[index] = (device_t){(int)index, -1};
    *out = &boards[index];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetName(device_t *d, char *out, unsigned size) {
    ENTER(d->index)
    snprintf(out, size, "%s%s", s.name[d->index], d->mig >= 0 ? " MIG 1g.12gb" : "");
    return SUCCESS;
}

EXPORT int nvmlDeviceGetUUID(device_t *d, char *out, unsigned size) {
    ENTER(d->index)
    if (d->mig >= 0) snprintf(out, size, "MIG-%d%d000000-aaaa-bbbb-cccc-dddddddddddd", d->index, d->mig);
    else snprintf(out, size, "%s", s.uuid[d->index]);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(device_t *d, memory_t *out) {
    ENTER(d->index)
    double used = s.base[d->index];
    if (d->mig >= 0) used = 20 + d->mig;
    for (int i = 0; i < s.tenants; i++)
        if (s.tenant[i].device == d->index) used += held_mib(&s.tenant[i]);
    out->total = (d->mig >= 0 ? 12288 : TOTAL_MIB) * MIB;
    out->used = used * MIB;
    out->free = out->total - out->used;
    return SUCCESS;
}

#define BOARD_VALUE(function, type, value) \
    EXPORT int function(device_t *d, type *out) { ENTER_BOARD(d) *out = value; return SUCCESS; }
#define ANY_VALUE(function, type, value) \
    EXPORT int function(device_t *d, type *out) { ENTER(d->index) *out = value; return SUCCESS; }

BOARD_VALUE(nvmlDeviceGetUtilizationRates, utilization_t, ((utilization_t){37, 12}))
BOARD_VALUE(nvmlDeviceGetPowerUsage, unsigned, 123456)
BOARD_VALUE(nvmlDeviceGetEnforcedPowerLimit, unsigned, 300000)
BOARD_VALUE(nvmlDeviceGetPowerManagementLimit, unsigned, 290000)
BOARD_VALUE(nvmlDeviceGetTemperatureV, temperature_t, ((temperature_t){out->version, out->sensor, 61}))
BOARD_VALUE(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, s.throttle[d->index])
BOARD_VALUE(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, s.throttle[d->index])
ANY_VALUE(nvmlDeviceGetIndex, unsigned, d->mig >= 0 ? d->mig : d->index)
ANY_VALUE(nvmlDeviceGetMaxMigDeviceCount, unsigned, MAX_INSTANCES)
ANY_VALUE(nvmlDeviceGetGpuInstanceId, unsigned, 7 + d->mig)
ANY_VALUE(nvmlDeviceGetComputeInstanceId, unsigned, 0)

EXPORT int nvmlDeviceGetClockInfo(device_t *d, unsigned type, unsigned *out) {
    ENTER_BOARD(d)
    *out = type == 2 ? 8001 : 1800;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTemperature(device_t *d, unsigned sensor, unsigned *out) {
    (void)sensor;
    ENTER_BOARD(d)
    *out = 60;
    return SUCCESS;
}

static int list_processes(const state_t *s, const device_t *d, unsigned *count, process_t *out) {
    unsigned room = *count, found = 0;
    for (int i = 0; i < s->tenants; i++) {
        const tenant_t *t = &s->tenant[i];
        if (t->device != d->index || !alive(t)) continue;
        if (out && found < room) {
            unsigned long long used = t->mib < 0 ? ~0ull : t->mib * MIB;
            out[found] = (process_t){t->pid, used, ~0u, ~0u};
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(device_t *d, unsigned *count, process_t *out) {
    ENTER(d->index)
    return list_processes(&s, d, count, out);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(device_t *d, unsigned *count, process_t *out) {
    ENTER(d->index)
    return list_processes(&s, d, count, out);
}

EXPORT int nvmlDeviceGetMigMode(device_t *d, unsigned *current, unsigned *pending) {
    ENTER(d->index)
    *current = *pending = s.mig[d->index] >= 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(device_t *d, unsigned number, device_t **out) {
    ENTER(d->index)
    if ((int)number >= s.mig[d->index]) return NOT_FOUND;
    instances[d->index][number] = (device_t){d->index, (int)number};
    *out = &instances[d->index][number];
    return SUCCESS;
}

EXPORT int nvmlEventSetCreate(event_set_t **out) {
    ENTER(-1)
    event_set_t *set = calloc(1, sizeof *set);
    for (int i = 0; i < s.xids; i++)
        if (s.xid[i].sequence > set->last) set->last = s.xid[i].sequence;
    *out = set;
    return SUCCESS;
}

EXPORT int nvmlDeviceRegisterEvents(device_t *d, unsigned long long types, event_set_t *set) {
    ENTER_BOARD(d)
    if (types != 8) return INVALID_ARGUMENT;
    set->watched[d->index] = 1;
    return SUCCESS;
}

EXPORT int nvmlEventSetWait_v2(event_set_t *set, event_t *out, unsigned timeout_ms) {
    ENTER(-1)
    for (int i = 0; i < s.xids; i++) {
        const xid_t *x = &s.xid[i];
        if (x->sequence <= set->last) continue;
        set->last = x->sequence;
        if (!in_range(x->device) || !set->watched[x->device]) continue;
        *out = (event_t){&boards[x->device], 8, (unsigned long long)x->code, ~0u, ~0u};
        return SUCCESS;
    }
    usleep(timeout_ms * 1000);
    return TIMEOUT;
}

EXPORT int nvmlEventSetFree(event_set_t *set) {
    ENTER(-1)
    free(set);
    return SUCCESS;
}
