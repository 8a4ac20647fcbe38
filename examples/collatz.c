/* An arm in C that stays alive between iterations: commands on standard input, one JSON line in answer to each.
 *
 * It looks for the longest Collatz chain below n, from scratch or with the lengths of small numbers kept in a table:
 * ./collatz --set n=200000 --set table=true. The protocol is specified in harness/protocol.py.
 */
#define _POSIX_C_SOURCE 199309L
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TABLE (1 << 16)

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The number below n with the longest chain; table has TABLE entries, or is NULL. */
static uint64_t longest(uint64_t n, uint32_t *table) {
    uint64_t best = 1;
    uint32_t steps_of_best = 0;
    if (table) memset(table, 0, TABLE * sizeof *table);
    for (uint64_t start = 2; start < n; start++) {
        uint64_t x = start;
        uint32_t steps = 0;
        while (x != 1) {
            if (table && x < start && x < TABLE) { steps += table[x]; break; }
            x = x & 1 ? 3 * x + 1 : x / 2;
            steps++;
        }
        if (table && start < TABLE) table[start] = steps;
        if (steps > steps_of_best) { steps_of_best = steps; best = start; }
    }
    return best;
}

int main(int count, char **words) {
    uint64_t n = 200000, best = 0;
    int keep = 0, index[2] = {0, 0};
    char line[4096];
    for (int i = 1; i < count; i++) {
        if (!strncmp(words[i], "n=", 2)) n = strtoull(words[i] + 2, NULL, 10);
        if (!strcmp(words[i], "table=true")) keep = 1;
    }
    uint32_t *table = keep ? malloc(TABLE * sizeof *table) : NULL;
    printf("{\"kind\":\"header\",\"schema\":1,\"workload\":\"collatz\",\"parameters\":{\"n\":%" PRIu64 ",\"table\":%s},"
           "\"accepts\":{\"n\":200000,\"table\":false}}\n", n, keep ? "true" : "false");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        double seconds = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
        int steady = strstr(line, "\"steady\"") != NULL, over = strstr(line, "\"close\"") != NULL;
        if (strstr(line, "\"iterate\"")) {
            best = longest(n, table);
            seconds = now(CLOCK_MONOTONIC) - seconds;
            cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
            printf("{\"kind\":\"iteration\",\"phase\":\"%s\",\"index\":%d,\"seconds\":%.9f,\"cpu_seconds\":%.9f,"
                   "\"units\":%" PRIu64 ",\"work\":%" PRIu64 "}\n",
                   steady ? "steady" : "warmup", index[steady]++, seconds, cpu, n, n);
        } else if (strstr(line, "\"fingerprint\"")) {
            printf("{\"kind\":\"fingerprint\",\"work\":%" PRIu64 ",\"digests\":{\"best\":\"%" PRIx64 "\"}}\n", n, best);
        } else if (strstr(line, "\"setup\"")) {
            printf("{\"kind\":\"phase\",\"name\":\"setup\",\"seconds\":0,\"cpu_seconds\":0}\n");
        } else if (over) {
            printf("{\"kind\":\"closed\"}\n");
        }
        fflush(stdout);
        if (over) break;
    }
    free(table);
    return 0;
}
