/* Rough handling: many threads on one connection and one file, a child process, handles that
 * outlive their connection, and a mount that dies meanwhile. The mount has a file `f` of 1,000,000
 * bytes. Each byte is its offset modulo 249. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <hither.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE 1000000
#define THREADS 8

static hither_t *h;
static hither_file_t *file;
static char numbers[THREADS];

#define EXPECT(ok) \
    do { \
        if (!(ok)) { \
            fprintf(stderr, "line %d: %s: errno %d, %s\n", __LINE__, #ok, errno, hither_error()); \
            exit(1); \
        } \
    } while (0)

static void *reader(void *of) {
    size_t seed = (size_t)((char *)of - numbers), i, k;
    unsigned char back[4096];
    char name[32], line[128];
    for (i = 0; i < 200; i++) {
        uint64_t at = (seed * 7919 + i * 104729) % (SIZE - sizeof back);
        EXPECT(hither_pread(file, back, sizeof back, at) == (ssize_t)sizeof back);
        for (k = 0; k < sizeof back; k++)
            EXPECT(back[k] == (at + k) % 249);
        /* Each thread has its own last error. */
        snprintf(name, sizeof name, "none-%d-%d", (int)seed, (int)i);
        snprintf(line, sizeof line, "open %s: No such file or directory", name);
        EXPECT(hither_open(h, name, O_RDONLY, 0) == NULL && errno == ENOENT);
        EXPECT(strcmp(hither_error(), line) == 0);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    struct hither_entry entry;
    struct hither_attr attr;
    struct hither_part part;
    struct hither_content content;
    hither_walk_t *walk;
    hither_watch_t *watch;
    const char *name = "f";
    struct hither_changed changed;
    char byte;
    pid_t child;
    int i, status;
    EXPECT(argc == 2);
    h = hither_connect(argv[1]);
    EXPECT(h != NULL);
    file = hither_open(h, "f", O_RDONLY, 0);
    EXPECT(file != NULL);
    for (i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, reader, &numbers[i]) == 0);
    for (i = 0; i < THREADS; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    walk = hither_walk(h, "", UINT32_MAX);
    watch = hither_watch(h, &name, 1);
    EXPECT(walk != NULL && watch != NULL);

    /* A child connects again. Its calls with the parent's handles fail without other effects. */
    child = fork();
    if (child == 0) {
        hither_t *own;
        alarm(600);
        own = hither_connect(argv[1]);
        EXPECT(own != NULL && hither_stat(own, "f", &attr) == 0 && attr.size == SIZE);
        EXPECT(hither_stat(h, "f", &attr) == -1 && errno == ECONNABORTED);
        EXPECT(hither_pread(file, &byte, 1, 0) == -1 && errno == ECONNABORTED);
        EXPECT(hither_next(walk, &entry) == -1 && errno == ECONNABORTED);
        EXPECT(hither_change(watch, -1, &changed) == -1 && errno == ECONNABORTED);
        hither_walk_end(walk);
        hither_watch_end(watch);
        EXPECT(hither_close(file) == -1 && errno == ECONNABORTED);
        hither_disconnect(h);
        hither_disconnect(own);
        _exit(0);
    }
    EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);

    /* Open files outlive the handle of the connection. */
    hither_disconnect(h);
    EXPECT(hither_next(walk, &entry) == 1 && strcmp(entry.path, "f") == 0);
    EXPECT(hither_next(walk, &entry) == 0);
    EXPECT(hither_next(walk, &entry) == 0);
    EXPECT(hither_change(watch, -1, &changed) == 1 && changed.attr.size == SIZE);
    EXPECT(hither_change(watch, 0, &changed) == 0);
    EXPECT(hither_fstat(file, &attr) == 0 && attr.size == SIZE);

    /* The test kills the mount now. No signal arrives, and every call returns the reason. */
    h = hither_connect(argv[1]);
    EXPECT(h != NULL);
    puts("ready");
    fflush(stdout);
    EXPECT(getchar() == '\n');
    while (hither_fstat(file, &attr) == 0) /* Until the connection's end is noticed. */
        ;
    EXPECT(errno == ECONNABORTED);
    for (i = 0; i < 3; i++) {
        EXPECT(hither_pread(file, &byte, 1, 0) == -1 && errno == ECONNABORTED);
        EXPECT(hither_change(watch, -1, &changed) == -1 && errno == ECONNABORTED);
    }
    while (hither_stat(h, "f", &attr) == 0)
        ;
    memset(&part, 0, sizeof part);
    part.path = "f", part.data = &byte, part.len = 1;
    EXPECT(hither_readv(h, &part, 1) == -1 && errno == ECONNABORTED);
    EXPECT(hither_read_files(h, &name, 1, &content) == -1 && errno == ECONNABORTED);
    EXPECT(hither_write_file(h, "f", "x", 1, 0644) == -1 && errno == ECONNABORTED);
    EXPECT(hither_open(h, "f", O_RDONLY, 0) == NULL && errno == ECONNABORTED);
    EXPECT(hither_walk(h, "", 1) == NULL && errno == ECONNABORTED);
    EXPECT(hither_close(file) == -1 && errno == ECONNABORTED);
    hither_walk_end(walk);
    hither_watch_end(watch);
    hither_disconnect(h);
    puts("survived");
    return 0;
}
