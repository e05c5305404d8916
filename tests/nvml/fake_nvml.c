/* A libnvidia-ml.so.1 with ten devices, for driving the real binding without a GPU.
 *
 *   0  a GPU                       1  another, with other values
 *   2  a GPU that measures no power, has no NVLink and no ECC
 *   3  a GPU in MIG mode           4  the one MIG device on it
 *   5  a GPU on 4 of 16 PCIe lanes
 *   6  a GPU with ECC errors, one more each time they are counted
 *   7  a GPU that is too hot
 *   8  a GPU with an inactive NVLink, which counts no errors; the others count one more
 *      replay each time
 *   9  a Blackwell GPU with an inactive NVLink, which counts errors in fields of its own: one
 *      more recovery each time
 *
 * Environment:
 *   FAKE_NVML_INIT=CODE              nvmlInit answers CODE
 *   FAKE_NVML_FLEET=D,D,...          the devices that are counted, in that order (0,1,2,3);
 *                                    98 is one of another job, and any other number
 *                                    that no device has cannot be reached
 *   FAKE_NVML_FAIL=DEVICE:FUNCTION:AFTER:FOR:CODE
 *                                    every query of DEVICE answers CODE once FUNCTION has been
 *                                    answered AFTER times, for FOR queries (0: for ever)
 *   FAKE_NVML_CALLS=FILE             appends "DEVICE FUNCTION" for every query
 *   FAKE_NVML_HANG=1                 nvmlDeviceGetUtilizationRates never returns
 * Compiled with -DOLD_DRIVER it knows only what drivers before R510 did.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    INSUFFICIENT_SIZE = 7,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 25
};
enum { CLOCK_SM = 1, CLOCK_MEM = 2 };
enum { GPU_IDLE = 0x1, SW_POWER_CAP = 0x4, HW_THERMAL_SLOWDOWN = 0x40 };
enum { REPLAY_FIELD = 161, RECOVERY_FIELD = 162, CRC_FIELD = 163, POWER_INSTANT_FIELD = 186 };
enum { RECOVERY_EVENTS_FIELD = 215, EFFECTIVE_ERRORS_FIELD = 219 };
#define MIB (1024ULL * 1024)
#define ABSENT (~0U)

typedef unsigned int uint;
typedef unsigned long long ulong64;

typedef struct device {
    const char *uuid, *name;
    ulong64 total_mib, used_mib, reserved_mib;
    uint utilization_percent, power_mw, sm_clock_mhz;
    int is_mig, mig_mode;
    uint temperature_c, reasons, pcie_generation, pcie_width, max_generation, links, inactive_link;
    uint ecc_corrected, ecc_uncorrected;
    int is_blackwell;
} device;

#define V100 "Fake V100 SXM2"
#define HEALTHY 45, 0, 3, 16, 3, 6, ABSENT, 0, 0
static device fleet[] = {
    {"GPU-00000000-aaaa-4000-8000-000000000000", "Fake V100 A", 16384, 4096, 256, 90, 250000, 1380, 0, 0, HEALTHY},
    {"GPU-11111111-bbbb-4000-8000-000000000001", "Fake V100 B", 16384, 2048, 256, 50, 150500, 1200, 0, 0, HEALTHY},
    {"GPU-22222222-cccc-4000-8000-000000000002", "Fake T4", 15360, 1024, 128, 0, ABSENT, 300, 0, 0,
     38, GPU_IDLE, 1, 16, 3, 0, ABSENT, ABSENT, ABSENT},
    {"GPU-33333333-dddd-4000-8000-000000000003", "Fake A100", 40960, 30720, 512, ABSENT, 300000, 1410, 0, 1, HEALTHY},
    {"MIG-44444444-eeee-4000-8000-000000000004", "Fake A100 MIG 1g.5gb", 4864, 512, 16, ABSENT, 300000, ABSENT, 1, 0,
     ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, 0, ABSENT, ABSENT, ABSENT},
    {"GPU-55555555-ffff-4000-8000-000000000005", V100, 16384, 512, 256, 80, 200000, 1380, 0, 0,
     50, SW_POWER_CAP, 3, 4, 3, 6, ABSENT, 0, 0},
    {"GPU-66666666-aaaa-4000-8000-000000000006", V100, 16384, 512, 256, 80, 200000, 1380, 0, 0,
     50, 0, 3, 16, 3, 6, ABSENT, 7, 2},
    {"GPU-77777777-bbbb-4000-8000-000000000007", V100, 16384, 512, 256, 80, 200000, 900, 0, 0,
     91, HW_THERMAL_SLOWDOWN, 1, 16, 3, 6, ABSENT, 0, 0},
    {"GPU-88888888-cccc-4000-8000-000000000008", V100, 16384, 512, 256, 80, 200000, 1380, 0, 0,
     50, 0, 3, 16, 3, 6, 4, 0, 0},
    {"GPU-aaaaaaaa-dddd-4000-8000-00000000000a", "Fake B200", 183296, 512, 512, 80, 900000, 1900, 0, 0,
     50, 0, 5, 16, 5, 6, 4, 0, 0, 1},
};
#define FLEET_SIZE (sizeof fleet / sizeof fleet[0])

static uint answered[FLEET_SIZE], failed[FLEET_SIZE], counted[FLEET_SIZE];

static uint number_of(device *d) { return (uint)(d - fleet); }

/* The answer of every query: logged, and failing where the environment says so. */
static int query(device *d, const char *function) {
    uint device_number, after, length;
    char trigger[64];
    int code;
    const char *calls = getenv("FAKE_NVML_CALLS"), *fail = getenv("FAKE_NVML_FAIL");
    if (calls) {
        FILE *log = fopen(calls, "a");
        if (log) {
            fprintf(log, "%u %s\n", number_of(d), function);
            fclose(log);
        }
    }
    if (fail && sscanf(fail, "%u:%63[^:]:%u:%u:%d", &device_number, trigger, &after, &length, &code) == 5 &&
        device_number == number_of(d)) {
        if (answered[device_number] >= after && (!length || failed[device_number] < length)) {
            failed[device_number]++;
            return code;
        }
        if (!strcmp(function, trigger))
            answered[device_number]++;
    }
    return SUCCESS;
}

int nvmlInitWithFlags(uint flags) {
    (void)flags;
    const char *code = getenv("FAKE_NVML_INIT");
    return code ? atoi(code) : SUCCESS;
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    (void)code;
    return "an error that the binding has no text for";
}

int nvmlSystemGetDriverVersion(char *version, uint length) {
    snprintf(version, length, "575.57.08");
    return SUCCESS;
}

static const char *counted_devices(void) {
    const char *listed = getenv("FAKE_NVML_FLEET");
    return listed ? listed : "0,1,2,3";
}

int nvmlDeviceGetCount_v2(uint *count) {
    const char *listed = counted_devices();
    *count = *listed != 0;
    for (; *listed; listed++)
        *count += *listed == ',';
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(uint index, device **handle) {
    const char *listed = counted_devices();
    while (index--)
        listed = strchr(listed, ',') + 1;
    uint number = (uint)atoi(listed);
    if (number == 98)
        return NO_PERMISSION;
    if (number >= FLEET_SIZE)
        return GPU_IS_LOST;
    *handle = &fleet[number];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device **handle) {
    if (strncmp(uuid, "GPU-", 4) && strncmp(uuid, "MIG-", 4))
        return INVALID_ARGUMENT;
    for (size_t i = 0; i < FLEET_SIZE; i++)
        if (!strcmp(uuid, fleet[i].uuid)) {
            *handle = &fleet[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetName(device *d, char *name, uint length) {
    snprintf(name, length, "%s", d->name);
    return SUCCESS;
}

int nvmlDeviceGetVbiosVersion(device *d, char *version, uint length) {
    snprintf(version, length, "88.00.%02u", number_of(d));
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetGspFirmwareVersion(device *d, char *version) {
    (void)d;
    strcpy(version, "575.57.08");
    return SUCCESS;
}
#endif

int nvmlDeviceGetUUID(device *d, char *uuid, uint length) {
    snprintf(uuid, length, "%s", d->uuid);
    return SUCCESS;
}

int nvmlDeviceIsMigDeviceHandle(device *d, uint *is_mig) {
    *is_mig = (uint)d->is_mig;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(device *d, uint *current, uint *pending) {
    if (!d->mig_mode)
        return NOT_SUPPORTED;
    *current = *pending = 1;
    return SUCCESS;
}

/* Like a driver, it leaves 0 behind where it answers with an error. */
static int unsigned_answer(device *d, const char *function, uint value, uint *out) {
    int code = query(d, function);
    *out = 0;
    if (code != SUCCESS)
        return code;
    if (value == ABSENT)
        return NOT_SUPPORTED;
    *out = value;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(device *d, uint rates[2]) {
    while (getenv("FAKE_NVML_HANG"))
        pause();
    rates[1] = 0;
    return unsigned_answer(d, "utilization", d->utilization_percent, &rates[0]);
}

/* As from Ampere on: a mean over the last second, here a tenth too low. */
int nvmlDeviceGetPowerUsage(device *d, uint *milliwatts) {
    uint mean = d->power_mw == ABSENT ? ABSENT : d->power_mw / 10 * 9;
    return unsigned_answer(d, "power", mean, milliwatts);
}

int nvmlDeviceGetEnforcedPowerLimit(device *d, uint *milliwatts) {
    return unsigned_answer(d, "power_limit", d->power_mw == ABSENT ? ABSENT : 300000, milliwatts);
}

/* As much per second as the device's power, since 1970. */
int nvmlDeviceGetTotalEnergyConsumption(device *d, ulong64 *millijoules) {
    uint milliwatts;
    struct timespec now;
    *millijoules = 0;
    int code = unsigned_answer(d, "energy", d->power_mw, &milliwatts);
    if (code != SUCCESS)
        return code;
    clock_gettime(CLOCK_REALTIME, &now);
    *millijoules = (ulong64)((double)milliwatts * ((double)now.tv_sec + (double)now.tv_nsec / 1e9));
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(device *d, int type, uint *mhz) {
    if (type == CLOCK_MEM)
        return unsigned_answer(d, "memory_clock", 877, mhz);
    if (type != CLOCK_SM)
        return INVALID_ARGUMENT;
    return unsigned_answer(d, "clock", d->sm_clock_mhz, mhz);
}

int nvmlDeviceGetMaxClockInfo(device *d, int type, uint *mhz) {
    return type == CLOCK_SM ? unsigned_answer(d, "max_clock", 1530, mhz) : INVALID_ARGUMENT;
}

/* Newer drivers no longer have application clocks. */
int nvmlDeviceGetApplicationsClock(device *d, int type, uint *mhz) {
    if (type != CLOCK_SM)
        return INVALID_ARGUMENT;
    return unsigned_answer(d, "application_clock", d->is_blackwell ? ABSENT : 1312, mhz);
}

int nvmlDeviceGetMemoryInfo(device *d, ulong64 memory[3]) {
    int code = query(d, "memory");
    if (code != SUCCESS)
        return code;
    memory[0] = d->total_mib * MIB;
    memory[2] = (d->used_mib + d->reserved_mib) * MIB;
    memory[1] = memory[0] - memory[2];
    return SUCCESS;
}

typedef struct {
    char legacy_address[16];
    uint domain, bus, device, id, subsystem_id;
    char address[32];
} pci_info;

int nvmlDeviceGetPciInfo_v3(device *d, pci_info *found) {
    int code = query(d, "pci");
    if (code != SUCCESS)
        return code;
    memset(found, 0, sizeof *found);
    // Of the UUID's second part, so that each device has another.
    snprintf(found->address, sizeof found->address, "00000000:%.2s:00.0", d->uuid + 4);
    return SUCCESS;
}

typedef struct {
    uint pid;
    ulong64 used_memory;
    uint gpu_instance, compute_instance;
} process;

#ifdef OLD_DRIVER
#define COMPUTE_PROCESSES nvmlDeviceGetComputeRunningProcesses_v2
#else
#define COMPUTE_PROCESSES nvmlDeviceGetComputeRunningProcesses_v3
#endif
int COMPUTE_PROCESSES(device *d, uint *count, process *found) {
    int code = query(d, "processes");
    uint room = found ? *count : 0;
    if (code != SUCCESS)
        return code;
    *count = 2;
    if (room < *count)
        return INSUFFICIENT_SIZE;
    for (uint i = 0; i < *count; i++)
        found[i] = (process){.pid = 4711 + i, .used_memory = 512 * MIB};
    return SUCCESS;
}

int nvmlDeviceGetTemperature(device *d, int sensor, uint *celsius) {
    if (sensor != 0)
        return INVALID_ARGUMENT;
    return unsigned_answer(d, "temperature", d->temperature_c, celsius);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device *d, ulong64 *reasons) {
    uint bits;
    int code = unsigned_answer(d, "throttle_reasons", d->reasons, &bits);
    *reasons = bits;
    return code;
}

int nvmlDeviceGetCurrPcieLinkGeneration(device *d, uint *out) {
    return unsigned_answer(d, "pcie_generation", d->pcie_generation, out);
}

int nvmlDeviceGetCurrPcieLinkWidth(device *d, uint *out) {
    return unsigned_answer(d, "pcie_width", d->pcie_width, out);
}

int nvmlDeviceGetPcieReplayCounter(device *d, uint *count) {
    return unsigned_answer(d, "pcie_replays", 0, count);
}

int nvmlDeviceGetMaxPcieLinkGeneration(device *d, uint *out) {
    *out = d->max_generation;
    return d->max_generation == ABSENT ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetMaxPcieLinkWidth(device *d, uint *out) {
    *out = 16;
    return d->max_generation == ABSENT ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetNvLinkState(device *d, uint link, uint *active) {
    int code = query(d, "nvlink_state");
    if (code != SUCCESS)
        return code;
    if (!d->links)
        return NOT_SUPPORTED;
    if (link >= d->links)
        return INVALID_ARGUMENT;
    *active = link != d->inactive_link;
    counted[number_of(d)] += link == 0;
    return SUCCESS;
}

/* The first kind grows on a GPU with an inactive link: one more each time its links are looked at. */
static ulong64 link_errors(device *d, uint kind) {
    return kind == 0 && d->inactive_link != ABSENT ? counted[number_of(d)] : 0;
}

int nvmlDeviceGetNvLinkErrorCounter(device *d, uint link, uint counter, ulong64 *value) {
    int code = query(d, "nvlink_counter");
    if (code != SUCCESS)
        return code;
    if (link >= d->links || counter > 4)
        return INVALID_ARGUMENT;
    if (link == d->inactive_link || d->is_blackwell)
        return NOT_SUPPORTED;
    *value = link_errors(d, counter);
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(device *d, int kind, int counter, ulong64 *count) {
    uint known;
    if (counter != 0)
        return INVALID_ARGUMENT;
    int code = unsigned_answer(d, kind ? "ecc_uncorrected" : "ecc_corrected",
                               kind ? d->ecc_uncorrected : d->ecc_corrected, &known);
    *count = known;
    if (code == SUCCESS && !kind && known)
        d->ecc_corrected++;
    return code;
}

typedef struct field_value {
    uint field, scope;
    long long timestamp, latency;
    uint type;
    int code;
    union {
        double floating;
        uint whole;
        ulong64 large;
    } value;
} field_value;

int nvmlDeviceGetFieldValues(device *d, int count, field_value *values) {
    int code = query(d, "fields");
    if (code != SUCCESS)
        return code;
    for (int i = 0; i < count; i++) {
        field_value *v = &values[i];
        v->code = NOT_SUPPORTED;
        v->value.large = 0;
#ifndef OLD_DRIVER
        if (v->field == POWER_INSTANT_FIELD && d->power_mw != ABSENT) {
            v->code = SUCCESS;
            v->type = 1;
            v->value.whole = d->power_mw;
        } else if (v->field >= REPLAY_FIELD && v->field <= CRC_FIELD && v->scope < d->links &&
                   v->scope != d->inactive_link && !d->is_blackwell) {
            v->code = SUCCESS;
            v->type = 3;
            v->value.large = link_errors(d, v->field - REPLAY_FIELD);
        } else if ((v->field == RECOVERY_EVENTS_FIELD || v->field == EFFECTIVE_ERRORS_FIELD) &&
                   v->scope < d->links && v->scope != d->inactive_link && d->is_blackwell) {
            v->code = SUCCESS;
            v->type = 3;
            v->value.large = link_errors(d, v->field - RECOVERY_EVENTS_FIELD);
        }
#endif
    }
    return SUCCESS;
}

#ifndef OLD_DRIVER
struct memory_v2 {
    uint version;
    ulong64 total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(device *d, struct memory_v2 *memory) {
    if (memory->version != (sizeof *memory | 2U << 24))
        return VERSION_MISMATCH;
    int code = query(d, "memory_v2");
    if (code != SUCCESS)
        return code;
    memory->total = d->total_mib * MIB;
    memory->reserved = d->reserved_mib * MIB;
    memory->used = d->used_mib * MIB;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

struct temperature {
    uint version, sensor;
    int celsius;
};

int nvmlDeviceGetTemperatureV(device *d, struct temperature *temperature) {
    uint celsius;
    if (temperature->version != (sizeof *temperature | 1U << 24))
        return VERSION_MISMATCH;
    int code = unsigned_answer(d, "temperature_v", d->temperature_c, &celsius);
    temperature->celsius = (int)celsius;
    return code;
}

int nvmlDeviceGetCurrentClocksEventReasons(device *d, ulong64 *reasons) {
    uint bits;
    int code = unsigned_answer(d, "event_reasons", d->reasons, &bits);
    *reasons = bits;
    return code;
}
#endif
