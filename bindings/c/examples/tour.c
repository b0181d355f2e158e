/* A tour of libhither: makes a directory with files on a mount, and reads, lists and watches them.
 *
 *     cc tour.c $(pkg-config --cflags --libs hither) -o tour && ./tour /mnt/share
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <hither.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FILES 30
#define LARGE ((size_t)3 << 20)

/* Ends the program with the message of the failed call. */
static void check(int ok) {
    if (!ok) {
        fprintf(stderr, "tour: %s\n", hither_error());
        exit(1);
    }
}

/* Ends the program with a message about a wrong result. */
static void expect(int ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "tour: not as expected: %s\n", what);
        exit(1);
    }
}

/* An open file: writes and reads at offsets. Large ones send requests side by side. */
static void one_file(hither_t *h) {
    struct hither_attr attr;
    unsigned char *body = (unsigned char *)malloc(LARGE), *back = (unsigned char *)malloc(LARGE + 1);
    hither_file_t *f;
    size_t i;
    expect(body != NULL && back != NULL, "memory");
    for (i = 0; i < LARGE; i++)
        body[i] = (unsigned char)(i % 251);

    f = hither_open(h, "tour/large", O_RDWR | O_CREAT | O_EXCL, 0640);
    check(f != NULL);
    check(hither_pwrite(f, body, LARGE, 0) == (ssize_t)LARGE);
    check(hither_fsync(f) == 0); /* The data is on the server's stable storage now. */
    expect(hither_lend(f) == -1 && errno == EOPNOTSUPP, "no loan of what may change");
    check(hither_pread(f, back, LARGE + 1, 0) >= 0);
    expect(memcmp(body, back, LARGE) == 0, "the bytes that were written");
    expect(hither_pread(f, back, 10, LARGE - 4) == 4, "four bytes before the end");
    expect(hither_pread(f, back, 10, LARGE + 4) == 0, "nothing behind it");
    check(hither_fstat(f, &attr) == 0);
    expect(S_ISREG(attr.mode) && (attr.mode & 07777) == 0640 && attr.size == LARGE, "attributes of an open file");
    check(hither_ftruncate(f, 2) == 0);
    check(hither_append(f, "end", 3) == 3); /* At the present end of the file. */
    expect(hither_pread(f, back, 10, 1) == 4 && memcmp(back, "\001end", 4) == 0, "what was appended");
    check(hither_close(f) == 0); /* As close(2), this reports write errors. */

    check(hither_stat(h, "tour/large", &attr) == 0);
    expect(attr.size == 5, "the length after the cut");
    expect(hither_open(h, "tour/large", O_WRONLY | O_CREAT | O_EXCL, 0600) == NULL && errno == EEXIST, "EEXIST");
    check(hither_write_file(h, "tour/large", body, LARGE, 0644) == 0);
    free(body);
    free(back);
}

/* Many files in a few round trips. Through the kernel each file would take one. */
static void many_files(hither_t *h) {
    static char names[FILES + 1][32];
    const char *paths[FILES + 1];
    struct hither_content contents[FILES + 1];
    struct hither_stated stated[FILES + 1];
    struct hither_part parts[3];
    char head[8], tail[8], *all = (char *)malloc(LARGE);
    int i;
    expect(all != NULL, "memory");
    for (i = 0; i <= FILES; i++) {
        snprintf(names[i], sizeof names[i], "tour/f%d", i);
        paths[i] = names[i];
        if (i < FILES)
            check(hither_write_file(h, paths[i], names[i], strlen(names[i]), 0644) == 0);
    }
    /* The last file does not exist. It has its own error, and the other files are read. */
    check(hither_read_files(h, paths, FILES + 1, contents) == 0);
    check(hither_stat_many(h, paths, FILES + 1, stated) == 0);
    for (i = 0; i < FILES; i++) {
        expect(contents[i].error == 0 && contents[i].len == strlen(names[i]), "a file's length");
        expect(memcmp(contents[i].data, names[i], contents[i].len) == 0, "a file's bytes");
        expect(stated[i].error == 0 && stated[i].attr.size == contents[i].len, "a file's attributes");
    }
    expect(contents[FILES].error == ENOENT && contents[FILES].data == NULL, "ENOENT");
    expect(stated[FILES].error == ENOENT, "ENOENT");
    hither_free_contents(contents, FILES + 1);

    /* The program provides the memory for parts. */
    memset(parts, 0, sizeof parts);
    parts[0].path = "tour/f1", parts[0].offset = 5, parts[0].data = head, parts[0].len = sizeof head;
    parts[1].path = "tour/large", parts[1].offset = LARGE - 3, parts[1].data = tail, parts[1].len = sizeof tail;
    parts[2].path = "tour/large", parts[2].offset = 0, parts[2].data = all, parts[2].len = LARGE;
    check(hither_readv(h, parts, 3) == 0);
    expect(parts[0].error == 0 && parts[0].read == 2 && parts[0].size == 7 && memcmp(head, "f1", 2) == 0, "a part");
    expect(parts[1].error == 0 && parts[1].read == 3 && parts[1].size == LARGE, "the part at the end");
    expect(parts[2].error == 0 && parts[2].read == LARGE && all[252] == 1, "a long part");
    free(all);
    printf("%d files read, and looked at\n", FILES);
}

/* Directories and trees with attributes. */
static void trees(hither_t *h) {
    hither_walk_t *walk;
    struct hither_entry entry;
    uint64_t bytes = 0;
    int files = 0, dirs = 0, rc;
    check(hither_mkdir(h, "tour/sub", 0750) == 0);
    check(hither_write_file(h, "tour/sub/deep", "deep", 4, 0644) == 0);
    check(hither_symlink(h, "sub/deep", "tour/link") == 0);
    walk = hither_walk(h, "tour", UINT32_MAX);
    check(walk != NULL);
    while ((rc = hither_next(walk, &entry)) == 1) {
        expect(entry.error == 0, entry.path);
        files += S_ISREG(entry.attr.mode);
        dirs += S_ISDIR(entry.attr.mode);
        if (S_ISREG(entry.attr.mode))
            bytes += entry.attr.size;
    }
    check(rc == 0);
    hither_walk_end(walk);
    expect(files == FILES + 2 && dirs == 1, "what is below the directory");
    printf("%d files below it, %" PRIu64 " bytes\n", files, bytes);

    walk = hither_list(h, "tour/sub");
    check(walk != NULL);
    check(hither_next(walk, &entry) == 1);
    expect(strcmp(entry.path, "deep") == 0 && entry.attr.size == 4, "the only entry");
    check(hither_next(walk, &entry) == 0);
    hither_walk_end(walk);
}

/* Links, names, and the errors of system calls. */
static void names(hither_t *h) {
    struct hither_attr attr;
    char target[16];
    check(hither_readlink(h, "tour/link", target, sizeof target) == 8);
    expect(memcmp(target, "sub/deep", 8) == 0, "a link's target");
    check(hither_readlink(h, "tour/link", target, 3) == 3);
    check(hither_lstat(h, "tour/link", &attr) == 0);
    expect(S_ISLNK(attr.mode), "a link itself");
    check(hither_stat(h, "tour/link", &attr) == 0);
    expect(S_ISREG(attr.mode) && attr.size == 4, "what a link leads to");
    expect(hither_open(h, "tour/link", O_RDONLY | O_NOFOLLOW, 0) == NULL && errno == ELOOP, "ELOOP");
    check(hither_rename(h, "tour/sub/deep", "tour/sub/deeper") == 0);
    expect(hither_stat(h, "tour/link", &attr) == -1 && errno == ENOENT, "a link that leads nowhere");
    expect(hither_rmdir(h, "tour/sub") == -1 && errno == ENOTEMPTY, "ENOTEMPTY");
    expect(hither_unlink(h, "tour/sub") == -1 && errno == EISDIR, "EISDIR");
    printf("as it should be: %s\n", hither_error());
}

/* Reports of changes. This program itself makes the changes. */
static void changes(hither_t *h) {
    const char *paths[2] = {"tour/f0", "tour/new"};
    struct hither_changed changed;
    hither_watch_t *watch = hither_watch(h, paths, 2);
    int i;
    check(watch != NULL);
    for (i = 0; i < 2; i++) { /* First the present states, in any order. */
        check(hither_change(watch, 120000, &changed) == 1);
        expect(changed.error == (changed.index == 0 ? 0 : ENOENT), "how it is");
    }
    check(hither_write_file(h, "tour/new", "1", 1, 0644) == 0);
    do
        check(hither_change(watch, 120000, &changed) == 1);
    while (changed.index != 1 || changed.error != 0 || changed.attr.size != 1);
    hither_watch_end(watch);
    check(hither_unlink(h, "tour/new") == 0);
    printf("a change was told\n");
}

static void tidy_up(hither_t *h) {
    char name[32];
    int i;
    for (i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "tour/f%d", i);
        check(hither_unlink(h, name) == 0);
    }
    check(hither_unlink(h, "tour/large") == 0);
    check(hither_unlink(h, "tour/link") == 0);
    check(hither_unlink(h, "tour/sub/deeper") == 0);
    check(hither_rmdir(h, "tour/sub") == 0);
    check(hither_rmdir(h, "tour") == 0);
}

int main(int argc, char **argv) {
    hither_t *h;
    if (argc != 2) {
        fprintf(stderr, "usage: tour DIR\n");
        return 2;
    }
    h = hither_connect(argv[1]);
    check(h != NULL);
    printf("libhither %s: %s on %s%s\n", hither_version(), hither_source(h), hither_dir(h),
           hither_is_read_only(h) ? ", read only" : "");
    check(hither_mkdir(h, "tour", 0755) == 0);
    one_file(h);
    many_files(h);
    trees(h);
    names(h);
    changes(h);
    tidy_up(h);
    hither_disconnect(h);
    return 0;
}
