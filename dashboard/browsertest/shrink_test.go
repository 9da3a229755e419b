package browsertest

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/png"
	"slices"
)

// shrink writes a PNG again with its 256 most frequent colours: a page has few, and the
// rest are the edges of letters.
func shrink(in []byte) ([]byte, error) {
	full, err := png.Decode(bytes.NewReader(in))
	if err != nil {
		return nil, err
	}
	size := full.Bounds()
	count := make(map[color.Color]int)
	for y := size.Min.Y; y < size.Max.Y; y++ {
		for x := size.Min.X; x < size.Max.X; x++ {
			count[full.At(x, y)]++
		}
	}
	var palette color.Palette
	for c := range count {
		palette = append(palette, c)
	}
	slices.SortFunc(palette, func(a, b color.Color) int { return cmp.Compare(count[b], count[a]) })
	palette = palette[:min(len(palette), 256)]
	nearest := make(map[color.Color]uint8, len(count))
	for c := range count {
		nearest[c] = uint8(palette.Index(c))
	}
	small := image.NewPaletted(size, palette)
	for y := size.Min.Y; y < size.Max.Y; y++ {
		for x := size.Min.X; x < size.Max.X; x++ {
			small.SetColorIndex(x, y, nearest[full.At(x, y)])
		}
	}
	var out bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, small)
	return out.Bytes(), err
}
