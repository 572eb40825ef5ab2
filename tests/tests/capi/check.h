/* Checks of the test programs: a failure prints the line, and ends the program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tensorlend.h>

#define SECONDS(n) (INT64_C(1000000000) * (n))

#define IS(condition)                                                                              \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n  last error: %s\n", __FILE__, __LINE__, #condition,       \
                    tensorlend_error_message());                                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define OK(call) IS((call) == TENSORLEND_OK)
/* The call fails with this status, and a message that contains the text. */
#define FAILS(status, text, call)                                                                  \
    do {                                                                                           \
        IS((call) == (status));                                                                    \
        IS(strstr(tensorlend_error_message(), text) != NULL);                                      \
    } while (0)
