/* A libamd_smi.so whose answers a table gives, for driving the real binding without a GPU.
 *
 * Environment:
 *   FAKE_AMDSMI=FILE       the table; a line is "DEVICE FUNCTION error CODE" or
 *                          "DEVICE FUNCTION OFFSET SIZE VALUE STEP": the answer's bytes at OFFSET
 *                          are VALUE, and STEP more at each further call of the function; with
 *                          SIZE 0, VALUE is a text. Other bytes are those of unknown numbers.
 *   FAKE_AMDSMI_INIT=CODE  amdsmi_init answers CODE
 *
 * Functions that a device has no line for are not supported. stubs.h has all that the binding looks
 * for: it makes them from its own list.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 2, MOST_DEVICES = 16, MOST_LINES = 4096, UUID_LENGTH = 38 };

typedef struct line {
    unsigned device, step;
    char function[64], text[64];
    long offset, size;
    unsigned long long value, calls;
} line;

static line lines[MOST_LINES];
static unsigned line_count, device_count;

int amdsmi_init(uint64_t flags) {
    (void)flags;
    const char *code = getenv("FAKE_AMDSMI_INIT"), *path = getenv("FAKE_AMDSMI");
    FILE *table = path ? fopen(path, "r") : NULL;
    if (code)
        return atoi(code);
    line_count = device_count = 0;
    char row[256], offset[32];
    while (table && fgets(row, sizeof row, table)) {
        line *l = &lines[line_count++];
        memset(l, 0, sizeof *l);
        sscanf(row, "%u %63s %31s", &l->device, l->function, offset);
        if (strcmp(offset, "error")) {
            sscanf(row, "%*u %*s %ld %ld %63[^\n]", &l->offset, &l->size, l->text);
            sscanf(l->text, "%llu %u", &l->value, &l->step);
        } else {
            l->offset = -1;
            sscanf(row, "%*u %*s error %llu", &l->value);
        }
        if (l->device >= device_count)
            device_count = l->device + 1;
    }
    if (table)
        fclose(table);
    return SUCCESS;
}

int amdsmi_shut_down(void) { return SUCCESS; }

int amdsmi_get_socket_handles(uint32_t *count, void **sockets) {
    for (uintptr_t i = 0; sockets && i < *count; i++)
        sockets[i] = (void *)(i + 1);
    *count = device_count;
    return SUCCESS;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **processors) {
    if (processors)
        processors[0] = socket;
    *count = 1;
    return SUCCESS;
}

static int answer(void *handle, const char *function, void *out) {
    int code = NOT_SUPPORTED;
    for (unsigned i = 0; i < line_count; i++) {
        line *l = &lines[i];
        if (l->device + 1 != (uintptr_t)handle || strcmp(l->function, function))
            continue;
        if (l->offset < 0)
            return (int)l->value;
        code = SUCCESS;
        unsigned long long value = l->value + l->step * l->calls++;
        if (l->size)
            memcpy((char *)out + l->offset, &value, (size_t)l->size);
        else
            strcpy((char *)out + l->offset, l->text);
    }
    return code;
}

/* The answer is behind the handle, or one or two arguments later. */
#define ANSWER_1(name, fill, size) \
    int name(void *h, void *out) { memset(out, fill, size); return answer(h, #name, out); }
#define ANSWER_2(name, fill, size) \
    int name(void *h, uintptr_t a, void *out) { (void)a; memset(out, fill, size); return answer(h, #name, out); }
#define ANSWER_3(name, fill, size) \
    int name(void *h, uintptr_t a, uintptr_t b, void *out) { (void)a, (void)b; memset(out, fill, size); return answer(h, #name, out); }

int amdsmi_get_gpu_device_uuid(void *h, uint32_t *length, char *out) {
    *length = UUID_LENGTH;
    return answer(h, "amdsmi_get_gpu_device_uuid", out);
}

int amdsmi_get_energy_count(void *h, uint64_t *energy, float *resolution, uint64_t *time) {
    *resolution = 15.25f;
    *time = 0;
    return answer(h, "amdsmi_get_energy_count", energy);
}

#include "stubs.h"
