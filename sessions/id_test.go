package sessions

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestID(t *testing.T) {
	require.Equal(t, "3.1.2", ID{3, 1, 2}.String())
	require.Equal(t, "18446744073709551615.0.9", ID{1<<64 - 1, 0, 9}.String())
	require.True(t, ID{}.IsZero())
	require.False(t, ID{Seq: 1}.IsZero())

	inOrder := []ID{{}, {1, 1, 1}, {1, 1, 2}, {1, 2, 1}, {2, 1, 1}, {2, 1, 10}, {10, 1, 1}}
	require.True(t, slices.IsSortedFunc(inOrder, ID.Compare))
	for i, a := range inOrder {
		for k, b := range inOrder {
			require.Equal(t, a.Compare(b), -b.Compare(a))
			require.Equal(t, i == k, a.Compare(b) == 0)
		}
	}
}
